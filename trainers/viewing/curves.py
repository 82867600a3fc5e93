"""Learning curves of a run that may still train, from its `metrics.csv`."""

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

# Curves of each plot: the name of its metric, in training and in evaluations.
METRICS: Final = ("return", "success")
SOURCES: Final = ("episode", "evaluation")
_MAX_POINTS: Final = 500


class LearningCurves:
    """Reads the metrics in a run folder again whenever they have changed."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.csv"
        self._seen = 0.0

    def read(self) -> dict[str, list[Curve]] | None:
        """Return the curves of each metric, or None if the file has not changed, or does not exist.

        Returns:
            By metric: frames `[K]`, then for each of `SOURCES` values `[K]`, NaN where a row has
            none. A metric that the run does not have is left out.
        """
        try:
            written = self._path.stat().st_mtime
            if written == self._seen:
                return None
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            return None
        self._seen = written
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may still be written
        rows = list(csv.DictReader(lines))
        stride = -(-len(rows) // _MAX_POINTS)
        curves: dict[str, list[Curve]] = {}
        for metric in METRICS:
            columns = [f"{source}/{metric}" for source in SOURCES]
            # Evaluations are few: all of their rows stay.
            kept = [r for n, r in enumerate(rows) if n % stride == 0 or r.get(columns[1])]
            values = [np.array([_number(row, name) for row in kept]) for name in columns]
            if kept and not all(np.isnan(each).all() for each in values):
                curves[metric] = [np.array([_number(row, "frames") for row in kept]), *values]
        return curves


def _number(row: dict[str, str], name: str) -> float:
    try:
        return float(row.get(name) or math.nan)
    except ValueError:
        return math.nan
