"""Worker processes of a simulator: how long they may take, and that they end with the program."""

import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import IO, Final

from torchrl_gpu.errors import WorkerError

# A new process imports its simulator and loads its scene: it may take at least this long.
START_SECONDS: Final = 60.0

# Processes in a row that die or hang without a finished step: another one would not help.
MAX_LOSSES: Final = 3

# Time for a process to close its simulator; one in the middle of a step may hang.
SECONDS_TO_END: Final = 10.0
SECONDS_TO_END_IN_STEP: Final = 2.0

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class Patience:
    """Time that processes which work at once have left to answer.

    Only time in which this program runs counts: Ctrl-Z stops the processes as well. `seconds` is
    the time for all of them together; None, or infinity as the attribute, is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = self._left = math.inf if seconds is None else seconds
        # A stop of the program within one wait counts as that wait.
        self._longest_wait = min(1.0, self.seconds / 10)

    def wait(self, pipe: IO[bytes] | Connection) -> bool:
        """Wait until a pipe can be read or is closed; return False if the time is up.

        Windows can wait for a pipe of `multiprocessing` only: for another one it returns at once.
        """
        answers: Callable[[float], object]
        if hasattr(select, "poll"):  # takes a tenth of the time of `Connection.poll`
            polling = select.poll()
            polling.register(pipe.fileno(), select.POLLIN)
            answers = lambda seconds: polling.poll(1000 * seconds)  # noqa: E731
        elif hasattr(pipe, "poll"):  # under Windows not a `Connection`, but a `PipeConnection`
            answers = pipe.poll
        else:
            return True
        while True:
            moment = min(self._left, self._longest_wait)
            if answers(moment):
                return True
            self._left -= moment
            if self._left <= 0:
                return False


def too_many_losses(lost: str) -> WorkerError:
    """Return the error of a process that was lost after `MAX_LOSSES` others.

    `lost` is the name of the process, and the cause of its loss in words.
    """
    count = MAX_LOSSES + 1
    return WorkerError(f"{lost}, the last of {count} processes in a row that finished no step")


def patience_to_start(step_timeout: float | None) -> Patience:
    """Return the time that a new process has for its first answer."""
    return Patience(step_timeout and max(step_timeout, START_SECONDS))


def parent_of_workers() -> int | None:
    """Return the argument of `end_with`: None where the system would end workers too early.

    Linux ends them with the thread that started them.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return os.getpid() if is_main and sys.platform == "linux" else None


def wake_without_preempting() -> None:
    """Keep this worker from preempting the process that wakes it (Linux only).

    The program sends the commands of a step to all workers one after the other. By default, the
    first of them often preempts it before it has sent the second one.
    """
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def end_with(parent: int | None) -> None:
    """Let the system kill this process when its parent ends, even if this one is stopped or hangs.

    `parent` is the result of `parent_of_workers` in the parent.
    """
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
