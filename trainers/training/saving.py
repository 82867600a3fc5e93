"""Checkpoints that are written while the training goes on."""

import threading
from collections.abc import Callable
from pathlib import Path

from torchrl_gpu.processes import ONE_PROCESS, Processes


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
        processes: Processes = ONE_PROCESS,
    ) -> None:
        self.newest: tuple[int, int] | None = None
        self.in_background = in_background
        self._on_written = on_written
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._steps_left: int | None = None
        self._end: Path | Exception

    def begin(
        self, write: Callable[[], Path], contains: tuple[int, int], steps: int | None = None
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
        """Wait if the next step would overwrite what is still to be written.

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
