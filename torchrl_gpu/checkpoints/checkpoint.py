"""Checkpoint folder of a run: names, lookup and rotation of checkpoints."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchrl_gpu.checkpoints.contents import check_count
from torchrl_gpu.checkpoints.files import PARTIAL_FILES, discard, reason, write_text
from torchrl_gpu.checkpoints.state_file import Snapshot, open_state
from torchrl_gpu.errors import ConfigurationError, ProcessLostError
from torchrl_gpu.processes import ONE_PROCESS, Processes

_log = logging.getLogger(__name__)

_MAX_PARTS = 100
_REPLAY_NAME = re.compile(r"frames_[0-9]{12}_replay\.safetensors")


class ReplayPart(NamedTuple):
    """The part of a replay buffer that a checkpoint saves."""

    state: Mapping[str, Any]  # contents since `since`, see `Snapshot`
    since: tuple[int, ...] = ()  # `written` of an earlier part; empty for all contents
    written: tuple[int, ...] = ()  # number of entries written to each ring so far
    # Number of the oldest entry that each ring still holds; the buffer no longer needs an earlier
    # part whose `written` is nowhere greater.
    oldest: tuple[int, ...] = ()
    steps: int | None = None  # number of environment steps that leave `state` as it is, if limited


class CheckpointFolder:
    """Checkpoints `frames_<frames>.safetensors` of one run: the newest ones and the best one.

    The replay buffer, which is large and needed only to resume training, is saved in separate
    files: each save writes the part that is new since the save before. The files that the newest
    checkpoint needs are kept. A folder that already contains checkpoints is continued. Only one run
    writes to a folder, and its frames increase from save to save.

    Each of several processes writes the checkpoint of its share into a separate folder, all of them
    at the same frames. The checkpoint of rank 0 appears once all others are on disk, and no process
    deletes an older one before that.

    Args:
        folder: folder of the checkpoints of the run, which the first checkpoint creates.
        keep: number of newest checkpoints to keep, at least 1; the best one is kept as well.
        processes: processes of the run, for the thread that writes.
    """

    def __init__(self, folder: Path, keep: int = 3, processes: Processes = ONE_PROCESS) -> None:
        self.folder = rank_folder(folder, processes.rank)
        self.keep = keep
        self._processes = processes
        # Names of the files of the saved replay, oldest first, and their `ReplayPart.written`.
        self._parts: dict[str, tuple[int, ...]] = {}
        self._has_saved = False

    def since(self, frames: int) -> tuple[int, ...]:
        """Return `ReplayPart.since` of the part to save after a number of frames.

        It is `written` of the newest part. Beyond 100 parts, the next one also replaces the newest
        ones, as long as each is no larger than those after it together: so their number is limited,
        and each entry is written a few times.
        """
        own = replay_path(self.path(frames)).name
        ends = [written for name, written in self._parts.items() if name != own]
        if len(ends) > _MAX_PARTS:
            totals = [sum(end) for end in ends]
            next_size = totals[-1] - totals[-2]
            while len(ends) > 1 and (size := totals[-1] - totals[-2]) <= next_size:
                next_size += size
                del totals[-1], ends[-1]
        return ends[-1] if ends else ()

    def prepare(
        self,
        frames: int,
        state: Mapping[Any, Any],
        replay: ReplayPart | None = None,
        score: float | None = None,
        copies: bool = True,
    ) -> Callable[[], Path]:
        """Take a snapshot of a run, and return the function that writes its checkpoint.

        The function writes the checkpoint, then deletes the checkpoints beyond `keep`. Call it
        before the next `prepare`, in any thread; `replay.steps` limits the time for it.

        Args:
            frames: number of environment steps so far.
            state: state of the run, see `Snapshot`.
            replay: part of the replay buffer since `since(frames)`. It is on disk before the
                checkpoint, so that an existing checkpoint is always complete. None if the buffer is
                not saved, or was saved after as many frames.
            score: score of the evaluation, finite, higher is better; the latest of equal scores is
                best.
            copies: whether to copy the tensors of `state`.

        Returns:
            Function that returns the path of the file with `state`. It raises a ConfigurationError
            if the files cannot be written; all earlier checkpoints then remain.

        Raises:
            TypeError: a state contains an unsupported value, see `Snapshot`.
        """
        path = self.path(frames)
        own = replay_path(path)
        newest, earlier = {path: Snapshot(state, copies)}, dict[Path, Snapshot]()
        parts = self._parts if own.name in self._parts else {}
        if replay is not None:
            parts = {
                name: written
                for name, written in self._parts.items()
                if name != own.name
                and written <= replay.since
                and _is_after(written, replay.oldest)
            }
            parts[own.name] = replay.written
            content = {"parts": list(map(list, parts.items())), "state": replay.state}
            earlier[own] = Snapshot(content, copies)
        if not self._processes.is_writer:
            newest, earlier = {}, {**earlier, **newest}

        def write_earlier() -> None:
            self._check_present(name for name in parts if name != own.name)
            for leftover in self.folder.glob(PARTIAL_FILES):
                discard(leftover)
            _write(earlier)

        def write() -> Path:
            self._together(write_earlier)
            self._together(lambda: _write(newest))
            self._parts, self._has_saved = parts, True
            self._rotate(path, score)
            return path

        return write

    def _together(self, work: Callable[[], None]) -> None:
        """Do work in all processes, and wait for all of them; a failure of one is raised in all."""
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        has_failed = self._processes.any(failure is not None)
        if failure is not None:
            raise failure
        if has_failed:
            raise ProcessLostError("another process of the run could not write its checkpoint")

    def _check_present(self, names: Iterable[str]) -> None:
        """Refuse to add to a folder or a replay that somebody has deleted during the run.

        The next save then writes everything.
        """
        needed = [self.folder] if self._has_saved else []
        for path in (*needed, *(self.folder / name for name in names)):
            if not path.exists():
                self._parts, self._has_saved = {}, False
                raise ConfigurationError(f"{path} was deleted while the run trained")

    def _rotate(self, path: Path, score: float | None) -> None:
        """Record the score of the checkpoint just written, and delete the files beyond `keep`."""
        if score is not None and score >= self._best_record()[1]:
            best = {"frames": frames_of(path), "score": float(score)}
            write_text(self.folder / "best.json", json.dumps(best))
        checkpoints = self.paths()
        kept = {path, self.best(), *checkpoints[-self.keep :]}
        for replay in self.folder.glob("frames_*_replay.safetensors"):
            if replay.name not in self._parts:
                discard(replay)
        for checkpoint in set(checkpoints) - kept:
            discard(checkpoint)

    def load_replay(self, checkpoint: Path) -> list[Mapping[str, Any]] | None:
        """Return the states of the parts of a saved replay, without reading their tensors.

        If the checkpoint lies in this folder, the next save adds a part to them; otherwise it saves
        all contents.

        Returns:
            State of each part as from `open_state`, oldest first. None if the replay of one of the
            processes was not saved, or a part was deleted: only those of the newest checkpoint are
            kept.

        Raises:
            ConfigurationError: a file cannot be read, or another version of this library wrote it.
        """
        self._parts = {}
        parts, states = self._saved_replay(checkpoint)
        if self._processes.any(states is None):
            return None
        if checkpoint.parent == self.folder:
            self._parts = parts
        return states

    @staticmethod
    def _saved_replay(
        checkpoint: Path,
    ) -> tuple[dict[str, tuple[int, ...]], list[Mapping[str, Any]] | None]:
        """Return names and states of the parts of a saved replay; None if one is missing."""
        newest = replay_path(checkpoint)
        if not newest.exists():
            return {}, None
        content = open_state(newest)
        if "parts" not in content:
            raise ConfigurationError(
                f"{newest}: another version of this library wrote this replay; delete the file to "
                "resume with a new one"
            )
        parts = {str(name): tuple(written) for name, written in content["parts"]}
        for name, written in parts.items():
            if _REPLAY_NAME.fullmatch(name) is None:
                raise ConfigurationError(f"{newest}: it names {name[:80]!r}, which is not a replay")
            for number in written:
                check_count(number, f"{newest}: entries written until {name}")
        earlier = [newest.with_name(name) for name in parts if name != newest.name]
        if not all(path.exists() for path in earlier):
            return {}, None
        return parts, [each["state"] for each in (*map(open_state, earlier), content)]

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


def frames_of(checkpoint: Path) -> int:
    """Return the number of environment steps before a checkpoint of a run, by its name."""
    return int(checkpoint.stem.removeprefix("frames_"))


def replay_path(checkpoint: Path) -> Path:
    """Return the path of the replay file of a checkpoint; the file exists only if it was saved."""
    return checkpoint.with_name(f"{checkpoint.stem}_replay.safetensors")


def rank_folder(checkpoints: Path, rank: int) -> Path:
    """Return the folder of the checkpoints of a process; rank 0 writes to that of the run."""
    return checkpoints / f"rank_{rank}" if rank else checkpoints


def shares_of(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint that the processes of rank 1 and higher have written."""
    return sorted(checkpoint.parent.glob(f"rank_*/{checkpoint.name}"))


def find_checkpoint(path: Path | str, best: bool = False) -> Path:
    """Return the checkpoint file for a user's setting `checkpoint=`.

    It names a checkpoint file, a run folder (with `checkpoints/` inside), or a folder of
    checkpoints. `best` chooses from a folder the one with the highest score, if there are scores;
    otherwise the newest is chosen, with a warning if the record of the scores is damaged.

    Raises:
        ConfigurationError: there is no checkpoint at `path`, or it cannot be looked up.
    """
    path = Path(path)
    inside = path / "checkpoints"
    try:
        is_file, is_folder, is_run = path.is_file(), path.is_dir(), inside.is_dir()
    except OSError as error:
        raise ConfigurationError(f"checkpoint={path}: {reason(error)}") from error
    if is_file:
        if _REPLAY_NAME.fullmatch(path.name):
            main = path.with_name(path.name.replace("_replay", ""))
            raise ConfigurationError(f"checkpoint={path} holds only the replay buffer; use {main}")
        return _in_named_folder(path)
    if not is_folder:
        raise ConfigurationError(f"checkpoint={path}: file or folder not found")
    folder = CheckpointFolder(inside if is_run else path)
    newest = folder.latest()
    if newest is None:
        raise ConfigurationError(f"checkpoint={path}: no frames_*.safetensors in {folder.folder}")
    found = folder.best() if best else newest
    if found is None and (record := folder.folder / "best.json").exists():
        _log.warning("%s: damaged, or of a deleted checkpoint; using %s", record, newest.name)
    return _in_named_folder(found or newest)


def _in_named_folder(file: Path) -> Path:
    """Return the path of a file with the name of its folder, by which its run is recognized."""
    return file if file.parent.name not in ("", "..") else file.parent.resolve() / file.name


def _write(files: Mapping[Path, Snapshot]) -> None:
    for path, snapshot in files.items():
        snapshot.write(path)


def _is_after(written: tuple[int, ...], oldest: tuple[int, ...]) -> bool:
    """Return whether a part reaches beyond the oldest entry of a ring."""
    return any(end > first for end, first in zip(written, oldest, strict=True))
