"""Tables and picture of the measurements."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.jobs import Side
from benchmarks.peers.libraries import LIBRARIES
from benchmarks.peers.works import WORKS, Measurement
from benchmarks.report import print_table

_COLUMNS = 3
_OURS, _THEIRS = "tab:blue", "silver"


def title(side: Side) -> str:
    """Return the name of a side in tables."""
    return f"{LIBRARIES[side.library].title} {side.variant}".rstrip()


def print_work(work: str, measurements: Sequence[Measurement]) -> None:
    """Print the rates of a work, and those of this library over those of every other side."""
    jobs = [m.job.title for m in measurements]
    sides = list(dict.fromkeys(side for m in measurements for side in m.rates))
    rows = [
        [title(side), *(_number(m.rate(side)) if side in m.rates else "" for m in measurements)]
        for side in sides
    ]
    print_table([WORKS[work].title, *jobs], rows)
    others = list(dict.fromkeys(side for m in measurements for side in m.others))
    rows = [
        [title(other), *(_ratios(m, other) if other in m.rates else "" for m in measurements)]
        for other in others
    ]
    if rows:
        print_table(["ours over theirs: default, best", *jobs], rows)


def _ratios(measurement: Measurement, other: Side) -> str:
    """Return the ratios of the first and, if there are several, the best side of this library."""
    ratios = [measurement.ratio(side, other) for side in measurement.ours]
    return ", ".join(f"{ratio:.2f}" for ratio in dict.fromkeys((ratios[0], max(ratios))))


def _number(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1_000 else f"{rate:,.0f}"


def draw(measurements: Sequence[Measurement], path: Path) -> None:
    """Draw one panel for each job that several libraries do: a bar for the rate of each side."""
    measurements = [m for m in measurements if m.others]
    plt = importlib.import_module("matplotlib.pyplot")
    columns = min(_COLUMNS, len(measurements))
    rows = -(-len(measurements) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(5 * columns, 3 * rows), squeeze=False)
    for panel in panels.flat[len(measurements) :]:
        panel.set_visible(False)
    for measurement, panel in zip(measurements, panels.flat, strict=False):
        _draw_job(panel, measurement)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_job(panel: Any, measurement: Measurement) -> None:
    sides = sorted(measurement.rates, key=measurement.rate)
    rates = [measurement.rate(side) for side in sides]
    colors = [_OURS if measurement.job.is_ours(side) else _THEIRS for side in sides]
    bars = panel.barh([title(side) for side in sides], rates, color=colors)
    panel.bar_label(bars, [_number(rate) for rate in rates], padding=3, fontsize="small")
    panel.set(title=measurement.job.title, xlabel=WORKS[measurement.work].title)
    panel.margins(x=0.2)
    panel.locator_params(axis="x", nbins=4)
    panel.spines[["top", "right"]].set_visible(False)
