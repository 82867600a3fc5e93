"""Checkpoints of a run that a viewer can play, by the names that its page shows."""

from pathlib import Path
from typing import Final

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, frames_of

NEWEST: Final = "newest"
BEST: Final = "best"


class WatchedCheckpoints:
    """Checkpoints of a run that may still train, or one policy alone.

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
