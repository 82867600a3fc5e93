"""Cells and names that the table in the terminal and the page share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchrl_gpu.tables import human_time
from trainers.comparing.drawing import percent, short
from trainers.comparing.groups import Group, differences
from trainers.comparing.runs import Axis

Values = tuple[str, list[str]]  # name of a setting, and its value in each group


@dataclass(frozen=True)
class Results:
    """Groups of runs in one environment, or over several, and the score that is a success.

    Attributes:
        env: name of the environment.
        groups: groups, at least one.
        success: success rate of an evaluation that counts as solved; None for none.
        mean_return: the same where scores are mean returns.
    """

    env: str
    groups: Sequence[Group]
    success: float | None = None
    mean_return: float | None = None

    @property
    def level(self) -> float | None:
        """Score of an evaluation that counts as solved; None if there is none."""
        return self.success if self.is_success else self.mean_return

    @property
    def is_success(self) -> bool:
        """Whether scores are success rates from 0 to 1, not mean returns."""
        return self.groups[0].runs[0].measure == "success"

    @property
    def measure(self) -> str:
        """Name of the scores."""
        return "success" if self.is_success else "mean return"

    @property
    def is_overall(self) -> bool:
        """Whether the groups have runs in several environments."""
        return len({run.env for group in self.groups for run in group.runs}) > 1

    def score(self, value: float) -> str:
        """Return a score as text."""
        if not math.isfinite(value):
            return "-"
        return f"{100 * value:.1f} %" if self.is_success else f"{value:,.4g}"

    def range(self, low: float, high: float) -> str:
        """Return an interval of scores as text."""
        return f"{self.score(low)} to {self.score(high)}" if math.isfinite(low) else "-"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns, and the row of each group without its name."""
        reached = [] if self.level is None else [f"frames to {self._level}", "time"]
        header = [
            *("runs", "mean", "IQM", "95 % interval", *reached),
            *self.system(self.groups[0]),
        ]
        rows = [self._row(group) for group in self.groups]
        known = [i for i in range(len(header)) if any(row[i] != "-" for row in rows)]
        return [header[i] for i in known], [[row[i] for i in known] for row in rows]

    def _row(self, group: Group) -> list[str]:
        runs = str(len(group.runs))
        if group.ended < len(group.runs):
            runs += f", {len(group.runs) - group.ended} not ended"
        reached = []
        if self.level is not None:
            reached = [self._reached(group, "frames"), self._reached(group, "seconds")]
        return [
            *(runs, self.score(float(group.scores.mean())), self.score(group.interquartile_mean)),
            *(self.range(*group.interval), *reached),
            *self.system(group).values(),
        ]

    def system(self, group: Group) -> dict[str, str]:
        """Return frames a second, mean utilisation and highest memory, by name of the column."""
        ends = [run.end for run in group.runs]
        rate = np.mean([frames / max(seconds, 1e-9) for frames, seconds in ends])
        values = {name: (f(group.value(metric, by))) for name, metric, by, f in _SYSTEM}
        return {"frames/s": f"{rate:,.0f}", **values}

    @property
    def _level(self) -> str:
        return percent(self.level or 0.0) if self.is_success else short(self.level or 0.0)

    def _reached(self, group: Group, axis: Axis) -> str:
        assert self.level is not None
        median, count = group.reaches(self.level, axis)
        number = "-"
        if math.isfinite(median):
            number = f"{median:,.0f}" if axis == "frames" else human_time(median)
        return number if count == len(group.runs) else f"{number} ({count} of {len(group.runs)})"

    @property
    def settings(self) -> tuple[list[Values], list[Values]]:
        """Settings that differ, and those of which the agents of some groups have none."""
        names = [
            name
            for name in differences(self.groups)
            if not name.startswith("choices.") and not name.endswith("_target_")
        ]
        rows = [(n, [group.setting(n) for group in self.groups]) for n in names]
        return [r for r in rows if "-" not in r[1]], [r for r in rows if "-" in r[1]]


def _gibibytes(value: float) -> str:
    """Return a number of bytes as text."""
    return f"{value / 2**30:.2f} GiB" if math.isfinite(value) else "-"


def _percent(value: float) -> str:
    return f"{value:.0f} %" if math.isfinite(value) else "-"


# Columns: name, metric, its summary over the rows of a run, and its text.
_SYSTEM: Final[Sequence[tuple[str, str, Callable, Callable[[float], str]]]] = (
    ("cpu", "system/cpu_percent", np.mean, _percent),
    ("memory", "system/memory_bytes", np.max, _gibibytes),
    ("device", "system/device_percent", np.mean, _percent),
    ("device memory", "system/device_memory_bytes", np.max, _gibibytes),
)
