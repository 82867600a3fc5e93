"""Checkpoints of a training, which are written while it goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agents.modules.training_state import networks_state, nonfinite
from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.processes import Processes
from trainers.training.nonfinite import refuse_nonfinite
from trainers.training.resuming import state_of

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)


def begin_save(trainer: TorchRLTrainer) -> None:
    """Take a snapshot, and begin to write it once the checkpoint before is on disk.

    Refuse a parameter that is NaN or infinite; nothing is written then.
    """
    with trainer.timers("save"):
        refuse_nonfinite(trainer, nonfinite(networks_state(trainer.agent)))
        trainer.saver.wait()
        frames, newest = trainer.frames, trainer.saver.newest
        evaluation = trainer.evaluations.get(frames)
        score = None if evaluation is None else evaluation.score
        part: ReplayPart | None = None
        # An evaluation changes nothing in the replay.
        if trainer.save_replay and (newest is None or newest[0] != frames):
            part = trainer.experience.part(trainer.checkpoints.since(frames))
        copies = trainer.saver.in_background
        write = trainer.checkpoints.prepare(frames, state_of(trainer), part, score, copies)
        trainer.saver.begin(write, (frames, len(trainer.evaluations)), part and part.steps)


def save_if_changed(trainer: TorchRLTrainer) -> None:
    """Begin to write a checkpoint unless there is one of this state."""
    if not _is_saved(trainer):
        begin_save(trainer)


def save_after_error(trainer: TorchRLTrainer) -> bool:
    """Save the state that an exception has left, and return whether it is saved.

    Several processes can only save together.
    """
    if trainer.processes.count > 1:
        return False
    frames = trainer.frames
    try:
        save_if_changed(trainer)
        trainer.saver.wait()
    except Exception as error:
        if not _is_saved(trainer):  # it is if a callback fails
            newest = trainer.checkpoints.latest()
            text = "an error ends the run at %d frames; saving failed: %s; newest checkpoint: %s"
            logger.warning(text, frames, error, newest.name if newest else "none")
            return False
    if not trainer.stop_requested:
        path = trainer.checkpoints.path(frames)
        logger.warning("an error ends the run at %d frames; saved: %s", frames, path)
    return True


def _is_saved(trainer: TorchRLTrainer) -> bool:
    """Return whether a checkpoint of this state is on disk or being written."""
    return trainer.saver.newest == (trainer.frames, len(trainer.evaluations))


class CheckpointSaver:
    """Writes one checkpoint at a time, in a thread.

    An exception of the thread is raised by the next call of any method.

    Args:
        in_background: whether the training goes on meanwhile; without, `begin` returns at the end.
        on_written: function that is called with the path of each checkpoint once it is on disk, in
            the thread of the training.
        processes: processes that all save; each takes note of a checkpoint in the same step.

    Attributes:
        newest: frames and number of evaluations of the newest checkpoint that is on disk or being
            written; None if there is none of this state of the run.
    """

    def __init__(
        self,
        in_background: bool,
        on_written: Callable[[Path], None],
        processes: Processes,
    ) -> None:
        self.newest: tuple[int, int] | None = None
        self.in_background = in_background
        self._on_written = on_written
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._steps_left: int | None = None
        self._end: Path | Exception

    def begin(
        self, write: Callable[[], Path], contains: tuple[int, int], steps: int | None
    ) -> None:
        """Begin to write a checkpoint; call `wait` before its content is prepared.

        Args:
            write: function that writes it, and returns its path.
            contains: its frames and number of evaluations.
            steps: number of steps that leave its content as it is, see `ReplayPart`.
        """
        # If the program is to end at once, it does not wait for a daemon.
        thread = threading.Thread(target=self._run, args=(write,), name="save", daemon=True)
        thread.start()
        self._thread, self.newest, self._steps_left = thread, contains, steps
        if not self.in_background:
            self.wait()

    def before_step(self) -> None:
        """Wait if the next step would overwrite steps that are still to be written.

        Also takes note of a checkpoint that has been written.
        """
        if self._thread is None:
            return
        if self._steps_left is not None:
            self._steps_left -= 1
        # The replays of the processes may leave them different numbers of steps.
        is_urgent = self._processes.any(self._steps_left == -1)
        if is_urgent or not self._processes.any(self._thread.is_alive()):
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written, if any, is on disk."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if isinstance(self._end, Exception):
            self.newest = None
            raise self._end
        self._on_written(self._end)

    def _run(self, write: Callable[[], Path]) -> None:
        try:
            self._end = write()
        except Exception as error:
            self._end = error
