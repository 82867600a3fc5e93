"""The checkpoints of a run: named, found, rotated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.files import PARTIAL_SUFFIX, atomic_file, discard, reason
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.errors import ConfigurationError


class CheckpointFolder:
    """The checkpoints of one run: `frames_<frames>.safetensors`, rotated, the best one kept.

    The replay, large and of use only to go on training, lies in a file of its own beside the newest
    checkpoint. A folder that already holds checkpoints is continued. One run writes to a folder,
    and its frames only grow.

    Args:
        folder: where they lie; made by the first `save`.
        keep: how many of the newest stay, at least 1; the best one stays besides.
    """

    @checked
    def __init__(self, folder: Path, keep: Annotated[int, Field(ge=1)] = 3) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self,
        frames: int,
        state: Mapping[Any, Any],
        replay_state: Mapping[Any, Any] | None = None,
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of this moment, then delete those no longer kept.

        Args:
            frames: environment steps so far.
            state: what `save_state` takes.
            replay_state: the same, for the replay; written first, so that a checkpoint that is
                there is complete.
            score: of the evaluation, higher is better; of equal scores the later one is best.

        Returns:
            The file of `state`.

        Raises:
            TypeError: see `save_state`.
            ConfigurationError: it cannot be written; all former checkpoints are still there.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make {self.folder}: {reason(error)}") from error
        for leftover in self.folder.glob(f".*{PARTIAL_SUFFIX}"):
            discard(leftover)
        path = self._path(frames)
        if replay_state is not None:
            save_state(replay_path(path), replay_state)
        save_state(path, state)
        if score is not None:
            self._record(frames, score)
        self._rotate(path)
        return path

    def latest(self) -> Path | None:
        """Return the checkpoint with the most frames; None where there is none."""
        return max(self._checkpoints(), default=None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score; None where none has one."""
        frames, _ = self._best_record()
        path = self._path(frames)
        return path if path.is_file() else None

    def _path(self, frames: int) -> Path:
        return self.folder / f"frames_{frames:012d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        files = self.folder.glob("frames_*.safetensors")
        return sorted(file for file in files if re.fullmatch(r"frames_\d{12}", file.stem))

    def _best_record(self) -> tuple[int, float]:
        """Return frames and score of the best checkpoint; a score of -inf where none is known."""
        try:
            record = json.loads((self.folder / "best.json").read_text(encoding="utf-8"))
            return int(record["frames"]), float(record["score"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, -math.inf

    def _record(self, frames: int, score: float) -> None:
        if score >= self._best_record()[1]:
            with atomic_file(self.folder / "best.json") as file:
                file.write(json.dumps({"frames": frames, "score": float(score)}).encode())

    def _rotate(self, saved: Path) -> None:
        checkpoints = self._checkpoints()
        kept = {saved, self.best(), *checkpoints[-self.keep :]}
        with_replay = {replay_path(saved), replay_path(checkpoints[-1])}
        for replay in set(self.folder.glob("frames_*_replay.safetensors")) - with_replay:
            discard(replay)
        for checkpoint in set(checkpoints) - kept:
            discard(checkpoint)


def replay_path(checkpoint: Path) -> Path:
    """Return where the replay that belongs to the file `checkpoint` lies, if it was saved."""
    return checkpoint.with_name(f"{checkpoint.stem}_replay.safetensors")


def find_checkpoint(path: Path | str, best: bool = False) -> Path:
    """Return the checkpoint file that a user's `checkpoint=` names.

    Args:
        path: a checkpoint file, a run folder (it has `checkpoints/`), or a folder of checkpoints.
        best: of a folder, take the one with the highest score, if any has one; else the newest.

    Raises:
        ConfigurationError: there is no checkpoint.
    """
    path = Path(path)
    if path.is_file():
        if path.stem.endswith("_replay"):
            main = path.with_name(path.name.replace("_replay", ""))
            raise ConfigurationError(f"checkpoint={path} holds the replay alone; name {main}")
        return path
    if not path.is_dir():
        raise ConfigurationError(f"checkpoint={path}: there is no such file or folder")
    inside = path / "checkpoints"
    folder = CheckpointFolder(inside if inside.is_dir() else path)
    found = (folder.best() if best else None) or folder.latest()
    if found is None:
        raise ConfigurationError(f"checkpoint={path}: no frames_*.safetensors in {folder.folder}")
    return found
