"""Tables and picture of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measuring import Samples
from benchmarks.peers.jobs import Job, Side
from benchmarks.peers.libraries import LIBRARIES
from benchmarks.report import picture, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS, _THEIRS = "tab:blue", "silver"


class Result(NamedTuple):
    """Rates of all sides of one job.

    Attributes:
        job: the job.
        samples: units per second of each side.
    """

    job: Job
    samples: Samples[Side]

    @property
    def sides(self) -> list[Side]:
        """All sides."""
        return list(self.samples.rates)

    @property
    def ours(self) -> list[Side]:
        """The sides of this library."""
        return [side for side in self.sides if side.is_ours]

    @property
    def others(self) -> list[Side]:
        """The sides that this library is compared with."""
        return [side for side in self.sides if not side.is_ours]


def title(side: Side) -> str:
    """Return the name of a side in tables."""
    return f"{LIBRARIES[side.library].title} {side.variant}".rstrip()


def print_work(results: Sequence[Result]) -> None:
    """Print the rates of jobs, and those of this library over those of every other side."""
    jobs = [r.job.title for r in results]
    sides = list(dict.fromkeys(side for r in results for side in r.sides))
    rows = [
        [title(side), *(_number(r.samples.rate(side)) if side in r.sides else "" for r in results)]
        for side in sides
    ]
    print_table([results[0].job.rate, *jobs], rows)
    others = list(dict.fromkeys(side for r in results for side in r.others))
    rows = [
        [title(other), *(_ratios(r, other) if other in r.others else "" for r in results)]
        for other in others
    ]
    if rows:
        print_table(["ours over theirs: in short runs, best", *jobs], rows)


def _ratios(result: Result, other: Side) -> str:
    """Return the ratios of the first and, if there are several, the best side of this library."""
    ratios = [result.samples.ratio(side, other) for side in result.ours]
    return ", ".join(f"{ratio:.2f}" for ratio in dict.fromkeys((ratios[0], max(ratios))))


def _number(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1_000 else f"{rate:,.0f}"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw one panel for each job that several libraries do: a bar for the rate of each side."""
    results = [result for result in results if result.others]
    with picture(path, len(results), size=(5.0, 3.0)) as panels:
        for result, panel in zip(results, panels, strict=True):
            _draw_job(panel, result)


def _draw_job(panel: Axes, result: Result) -> None:
    sides = sorted(result.sides, key=result.samples.rate)
    rates = [result.samples.rate(side) for side in sides]
    colors = [_OURS if side.is_ours else _THEIRS for side in sides]
    bars = panel.barh([title(side) for side in sides], rates, color=colors)
    panel.bar_label(bars, [_number(rate) for rate in rates], padding=3, fontsize="small")
    panel.set(title=result.job.title, xlabel=result.job.rate)
    panel.margins(x=0.2)
    panel.locator_params(axis="x", nbins=4)
    panel.spines[["top", "right"]].set_visible(False)
