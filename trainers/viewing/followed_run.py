"""A run that a viewer follows while it may still train: its checkpoints and learning curves."""

from pathlib import Path
from typing import Final

import numpy as np

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, frames_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.intervals import Scores
from trainers.comparing.runs import read_metrics

NEWEST: Final = "newest"
BEST: Final = "best"

# Curves of each plot: the name of its metric, in training and in evaluations.
_METRICS: Final = ("return", "success")
_SOURCES: Final = ("episode", "evaluation")
_MAX_POINTS: Final = 500


class WatchedCheckpoints:
    """Checkpoints of a run, by the names that the page shows, or one policy alone.

    Args:
        run: run folder, which need not contain a checkpoint yet; None for a policy alone.
        alone: name of that policy.
    """

    def __init__(self, run: Path | None, alone: str = "") -> None:
        self._folder = None if run is None else CheckpointFolder(run / "checkpoints")
        self._alone = alone

    def names(self) -> list[str]:
        """Return the names to choose from, newest first."""
        if self._folder is None:
            return [self._alone]
        best = [BEST] if self._folder.best() is not None else []
        return [NEWEST, *best, *map(name_of_checkpoint, reversed(self._folder.paths()))]

    def find(self, name: str) -> Path | None:
        """Return the file of a choice; None if there is none (any more)."""
        if self._folder is None:
            return None
        if name in (NEWEST, BEST):
            return self._folder.latest() if name == NEWEST else self._folder.best()
        return next((p for p in self._folder.paths() if name_of_checkpoint(p) == name), None)


def name_of_checkpoint(checkpoint: Path) -> str:
    """Return the frames of a checkpoint of a run as a choice."""
    return f"{frames_of(checkpoint):,} frames"


class LearningCurves:
    """Reads the metrics in a run folder again whenever they have changed."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.csv"
        self._seen = 0.0

    def read(self) -> dict[str, list[Scores]]:
        """Return the curves of each metric that the run has; none if the file has not changed.

        By metric: frames `[K]`, then values `[K]` in training and in evaluations, NaN where a row
        has none.
        """
        try:
            written = self._path.stat().st_mtime
            if written == self._seen:
                return {}
            columns = read_metrics(self._path)
        except (OSError, ConfigurationError):
            return {}
        self._seen = written
        frames = columns["frames"]
        stride = max(1, -(-len(frames) // _MAX_POINTS))
        curves: dict[str, list[Scores]] = {}
        for metric in _METRICS:
            none = np.full_like(frames, np.nan)
            values = [columns.get(f"{source}/{metric}", none) for source in _SOURCES]
            # Evaluations are few: all of their rows stay.
            kept = (np.arange(len(frames)) % stride == 0) | np.isfinite(values[1])
            if np.isfinite([column[kept] for column in values]).any():
                curves[metric] = [column[kept] for column in (frames, *values)]
        return curves
