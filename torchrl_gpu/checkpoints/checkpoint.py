"""Checkpoint folder of a run: names, lookup and rotation of checkpoints."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrl_gpu.checkpoints.files import PARTIAL_SUFFIX, discard, write_text
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.errors import ConfigurationError


class CheckpointFolder:
    """Checkpoints `frames_<frames>.safetensors` of one run: the newest ones and the best one.

    The replay buffer, which is large and needed only to resume training, is saved in a separate
    file beside the newest checkpoint. A folder that already contains checkpoints is continued. Only
    one run writes to a folder, and its frames increase from save to save.

    Args:
        folder: folder of the checkpoints, created by the first `save`.
        keep: number of newest checkpoints to keep, at least 1; the best one is kept as well.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self,
        frames: int,
        state: Mapping[Any, Any],
        replay_state: Mapping[Any, Any] | None = None,
        score: float | None = None,
    ) -> Path:
        """Write a checkpoint, then delete the checkpoints beyond `keep`.

        Args:
            frames: number of environment steps so far.
            state: state of the run, see `save_state`.
            replay_state: state of the replay buffer, see `save_state`; written before `state`, so
                that an existing checkpoint is always complete.
            score: score of the evaluation, finite, higher is better; the latest of equal scores is
                best.

        Returns:
            Path of the file with `state`.

        Raises:
            TypeError: a state contains an unsupported value, see `save_state`.
            ConfigurationError: the files cannot be written; all earlier checkpoints remain.
        """
        for leftover in self.folder.glob(f".*{PARTIAL_SUFFIX}"):
            discard(leftover)
        path = self.path(frames)
        if replay_state is not None:
            save_state(replay_path(path), replay_state)
        save_state(path, state)
        if score is not None and score >= self._best_record()[1]:
            record = {"frames": frames, "score": float(score)}
            write_text(self.folder / "best.json", json.dumps(record))
        checkpoints = self.paths()
        kept = {path, self.best(), *checkpoints[-self.keep :]}
        with_replay = {replay_path(path), replay_path(checkpoints[-1])}
        for replay in set(self.folder.glob("frames_*_replay.safetensors")) - with_replay:
            discard(replay)
        for checkpoint in set(checkpoints) - kept:
            discard(checkpoint)
        return path

    def paths(self) -> list[Path]:
        """Return all checkpoints, oldest first."""
        return sorted(self.folder.glob(f"frames_{'[0-9]' * 12}.safetensors"))

    def latest(self) -> Path | None:
        """Return the checkpoint with the most frames; None if there are no checkpoints."""
        return max(self.paths(), default=None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score; None if no checkpoint has a score."""
        frames, _ = self._best_record()
        path = self.path(frames)
        return path if path.is_file() else None

    def path(self, frames: int) -> Path:
        """Return the path of the checkpoint after a number of frames, which need not exist."""
        return self.folder / f"frames_{frames:012d}.safetensors"

    def _best_record(self) -> tuple[int, float]:
        """Return frames and score of the best checkpoint; the score is -inf if none is known."""
        try:
            record = json.loads((self.folder / "best.json").read_text(encoding="utf-8"))
            frames, score = int(record["frames"]), float(record["score"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0, -math.inf
        is_possible = 0 <= frames < 10**12 and math.isfinite(score)
        return (frames, score) if is_possible else (0, -math.inf)


def replay_path(checkpoint: Path) -> Path:
    """Return the path of the replay file of a checkpoint; the file exists only if it was saved."""
    return checkpoint.with_name(f"{checkpoint.stem}_replay.safetensors")


def find_checkpoint(path: Path | str, best: bool = False) -> Path:
    """Return the checkpoint file for a user's setting `checkpoint=`.

    Args:
        path: checkpoint file, run folder (with `checkpoints/` inside), or folder of checkpoints.
        best: whether to choose from a folder the checkpoint with the highest score, if there are
            scores; otherwise the newest one.

    Raises:
        ConfigurationError: there is no checkpoint at `path`.
    """
    path = Path(path)
    if path.is_file():
        if path.stem.endswith("_replay"):
            main = path.with_name(path.name.replace("_replay", ""))
            raise ConfigurationError(f"checkpoint={path} holds only the replay buffer; use {main}")
        return path
    if not path.is_dir():
        raise ConfigurationError(f"checkpoint={path}: file or folder not found")
    inside = path / "checkpoints"
    folder = CheckpointFolder(inside if inside.is_dir() else path)
    found = (folder.best() if best else None) or folder.latest()
    if found is None:
        raise ConfigurationError(f"checkpoint={path}: no frames_*.safetensors in {folder.folder}")
    return found
