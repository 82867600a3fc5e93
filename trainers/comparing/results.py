"""Cells and names that the table in the terminal and the page share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from torchrl_gpu.tables import human_time
from trainers.comparing.drawing import percent, short
from trainers.comparing.groups import Group, differences
from trainers.comparing.runs import Axis

# Columns of the use of the machine: name, metric, its summary over the rows of a run, unit in those
# of the metric, and text.
_SYSTEM: Final[Sequence[tuple[str, str, Callable[..., Any], float, str]]] = (
    ("cpu", "system/cpu_percent", np.mean, 1.0, "{:.0f} %"),
    ("memory", "system/memory_bytes", np.max, 2**30, "{:.2f} GiB"),
    ("device", "system/device_percent", np.mean, 1.0, "{:.0f} %"),
    ("device memory", "system/device_memory_bytes", np.max, 2**30, "{:.2f} GiB"),
)


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
    def is_success(self) -> bool:
        """Whether scores are success rates from 0 to 1, not mean returns."""
        return self.groups[0].runs[0].measure == "success"

    @property
    def is_overall(self) -> bool:
        """Whether the groups have runs in several environments."""
        return len({run.env for group in self.groups for run in group.runs}) > 1

    @property
    def measure(self) -> str:
        """Name of the scores."""
        return "success" if self.is_success else "mean return"

    @property
    def level(self) -> float | None:
        """Score of an evaluation that counts as solved; None if there is none."""
        return self.success if self.is_success else self.mean_return

    @property
    def tick(self) -> Callable[[float], str]:
        """Text of a round score, as beside an axis."""
        return percent if self.is_success else short

    def score(self, value: float) -> str:
        """Return a score as text."""
        return f"{100 * value:.1f} %" if self.is_success else f"{value:,.4g}"

    def range(self, low: float, high: float) -> str:
        """Return an interval of scores as text."""
        return f"{self.score(low)} to {self.score(high)}" if math.isfinite(low) else "-"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns, and the row of each group without its name."""
        rows = [self._row(group) for group in self.groups]
        known = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
        return known, [[row[name] for name in known] for row in rows]

    def _row(self, group: Group) -> dict[str, str]:
        """Return the cells of a group by name of the column."""
        going = len(group.runs) - group.ended
        row = {
            "runs": f"{len(group.runs)}, {going} not ended" if going else str(len(group.runs)),
            "mean": self.score(float(group.scores.mean())),
            "IQM": self.score(group.interquartile_mean),
            "95 % interval": self.range(*group.interval),
        }
        if self.level is not None:
            name = f"frames to {self.tick(self.level)}"
            row[name] = _reached(group, self.level, "frames", "{:,.0f}".format)
            row["time"] = _reached(group, self.level, "seconds", human_time)
        return row | self.system(group)

    def system(self, group: Group) -> dict[str, str]:
        """Return frames a second, mean utilisation and highest memory, by name of the column."""
        rate = np.mean([run.end[0] / max(run.end[1], 1e-9) for run in group.runs])
        row = {"frames/s": f"{rate:,.0f}"}
        for name, metric, summarize, unit, text in _SYSTEM:
            value = group.value(metric, summarize)
            row[name] = text.format(value / unit) if math.isfinite(value) else "-"
        return row

    @property
    def settings(self) -> tuple[list[list[str]], list[list[str]]]:
        """Settings that differ, and those that some agents have and others lack.

        Each is a row: its name, and its value in each group.
        """
        names = [
            name
            for name in differences(self.groups)
            if not name.startswith("choices.") and not name.endswith("_target_")
        ]
        agents = {group.runs[0].agent for group in self.groups}
        own = [[g for g in self.groups if g.runs[0].agent == agent] for agent in agents]
        telling = {name for groups in own for name in differences(groups)}
        rows = [[name, *(group.setting(name) for group in self.groups)] for name in names]
        common = [row for row in rows if "-" not in row or row[0] in telling]
        return common, [row for row in rows if row not in common]


def _reached(group: Group, level: float, axis: Axis, text: Callable[[float], str]) -> str:
    """Return when the runs of a group reach a level, and how many do if not all."""
    median, count = group.reaches(level, axis)
    number = text(median) if math.isfinite(median) else "-"
    return number if count == len(group.runs) else f"{number} ({count} of {len(group.runs)})"
