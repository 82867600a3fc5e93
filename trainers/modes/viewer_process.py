"""The process of a viewer beside a training."""

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Final

import psutil
import torch

from envs.processes import end_with, parent_of_workers
from torchrl_gpu.devices.host import ONE_THREAD
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import one_line
from torchrl_gpu.execution.execution import EAGER
from torchrl_gpu.signals import ignore_stop_signals, stop_signals_held
from trainers.command_line.settings import Settings
from trainers.modes.demo import check_renders, show
from trainers.viewing.followed_run import NEWEST

# While the process imports torch and builds the environment, and then.
_NICENESS_TO_BUILD, _NICENESS = 10, 19
# Each picture and each step disturb the training: shortest time between two pictures, and shortest
# pause between two episodes.
_FRAME_SECONDS, _SECONDS_BETWEEN = 1 / 15, 2.0
_SECONDS_TO_END: Final = 5.0  # of the processes of its simulator, which hold its output
_CPU: Final = torch.device("cpu")
# Whatever the working directory holds, the process finds the modules of this one.
_PROGRAM: Final = """
import os, sys
if hasattr(os, "nice"):
    os.nice({niceness})
sys.path[:] = {path}
from {module} import main
main({parent})
"""

logger = logging.getLogger(__name__)


@contextmanager
def viewer_beside(settings: Settings, env: Environment, run: Path) -> Iterator[None]:
    """Show the policy of a run that trains in the block, in a process of the lowest priority.

    The process ends with this one. If it fails, a message says so, and the training goes on.
    Without `viewer=web`, nothing happens.
    """
    if settings.general.viewer == "off":
        yield
        return
    check_renders(env)
    # The training has the device for itself.
    settings = replace(settings, devices=[_CPU], execution=EAGER, checkpoint=None, state=None)
    pause = max(settings.demo["seconds_between"], _SECONDS_BETWEEN)
    settings = replace(settings, demo={**settings.demo, "seconds_between": pause})
    program = _PROGRAM.format(
        niceness=_NICENESS_TO_BUILD,
        path=sys.path,
        module=__name__,
        parent=parent_of_workers(),
    )
    over = threading.Event()
    with stop_signals_held():
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    reader = threading.Thread(target=_log, args=(process.stdout, over), daemon=True)
    reader.start()
    logger.info("the viewer is starting; its address follows")
    try:
        with contextlib.suppress(OSError):  # it has ended already
            process.stdin.write(pickle.dumps((settings, run.absolute())))
            process.stdin.flush()
        yield
    finally:
        over.set()
        _end(process)
        reader.join(_SECONDS_TO_END)


def _end(viewer: subprocess.Popen[bytes]) -> None:
    """End a viewer together with the processes of its simulator, which may still be starting."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(viewer.pid)
        process.suspend()  # it starts no more of them
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    viewer.kill()
    viewer.wait()


def _log(stdout: IO[bytes], over: threading.Event) -> None:
    """Print the lines of the viewer, and one if it ends too early or never begins."""
    has_begun = False
    for line in stdout:
        has_begun = True
        logger.info("%s", line.decode(errors="replace").rstrip())
    if over.is_set() and not has_begun:
        logger.warning("the viewer had not begun when the training ended")
    elif not over.is_set():
        logger.warning("the viewer has ended; the training goes on")


def main(parent: int | None) -> None:
    """Be the process beside a training, which writes its settings to standard input."""
    ignore_stop_signals()
    end_with(parent)
    torch.set_num_threads(1)
    terminal = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # simulators print
    try:
        settings, run = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_input, daemon=True).start()
        show(settings, run, NEWEST, partial(print, file=terminal), _give_way, _FRAME_SECONDS)
    except Exception as error:
        print(f"viewer: {one_line(error) or type(error).__name__}", file=terminal)


def _give_way() -> None:
    """Play while the training leaves a core idle; no thread interrupts the training."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)  # at most the largest one
    if hasattr(os, "SCHED_IDLE"):
        for thread in psutil.Process().threads():  # that of the page answers in any case
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, thread.id, _NICENESS)
                os.sched_setscheduler(thread.id, os.SCHED_BATCH, os.sched_param(0))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # others interrupt it at once


def _end_with_input() -> None:
    """End this process together with the program that started it."""
    sys.stdin.buffer.read()
    os._exit(0)
