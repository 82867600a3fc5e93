"""A watchdog of simulators that run in the process of the training."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from torchrl_gpu.acting.collector import Simulating
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.environments.environment import name_of
from torchrl_gpu.signals import INSISTENT, SECONDS_OF_ONE_REQUEST, exit_code_after

logger = logging.getLogger(__name__)

_SECOND = 1.0


class Watchdog:
    """Reports a step or reset that does not return, within the block.

    A thread looks at the simulation every second. Time in which the program is stopped, as by
    Ctrl-Z, does not count. A second Ctrl-C or SIGTERM in one step ends the program if Python cannot
    handle it, because the simulator never returns from a library; one that lets no other thread run
    can only be killed.

    Attributes:
        is_interrupted: whether Ctrl-C ended the block in a step or reset that had been reported.
    """

    def __init__(self, checkpoints: CheckpointFolder, simulating: Simulating) -> None:
        self.is_interrupted = False
        self._checkpoints = checkpoints
        self._simulating = simulating
        self._reported = -1  # number of the call, see `Simulating`

    @property
    def reports(self) -> bool:
        """Whether a step or reset is running that has been reported."""
        return self._simulating.env is not None and self._reported == self._simulating.calls

    def __enter__(self) -> Watchdog:
        self.is_interrupted = False
        self._main = threading.get_ident()
        self._signals, self._sender = socket.socketpair()
        self._signals.settimeout(_SECOND)
        self._sender.setblocking(False)
        self._listens = False
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            self._listens = before == -1
            if not self._listens:  # an event loop, which has precedence
                signal.set_wakeup_fd(before)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.is_interrupted = self._simulating.interrupted == self._reported
        if self._listens:
            signal.set_wakeup_fd(-1)
        # Forked processes may hold it open.
        self._sender.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sender.close()
        self._signals.close()

    def _watch(self) -> None:
        call, silence, repeated = 0, 0.0, 0
        asked: dict[int, float] = {}  # signals in the call, with the time of the first
        while True:
            received: bytes | None = None
            with contextlib.suppress(TimeoutError):
                received = self._signals.recv(64)
            if received == b"":
                return
            env = self._simulating.env
            if env is None or self._simulating.calls != call:
                call, silence, repeated = self._simulating.calls, 0.0, 0
                asked.clear()
            elif received is None:
                silence += _SECOND
            for number in INSISTENT.intersection(received or b""):
                first = asked.setdefault(number, time.monotonic())
                if time.monotonic() - first > SECONDS_OF_ONE_REQUEST:
                    repeated = number
            if env is None or received is not None:
                continue
            if repeated:
                self._end(repeated)
            limit = env.stall_seconds
            if limit is not None and silence >= limit and self._reported != call:
                self._reported = call
                logger.warning(self._report(silence, name_of(env)))

    def _report(self, silence: float, name: str) -> str:
        frame = sys._current_frames().get(self._main)
        where = "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
        return (
            f"{name} has not answered for {silence:.0f} s{where}: Ctrl-C saves and ends the run; a "
            f"second one ends it at once, with {self._newest()}"
        )

    def _newest(self) -> str:
        path = self._checkpoints.latest()
        return "no checkpoint" if path is None else f"the checkpoint {path}"

    def _end(self, number: int) -> NoReturn:
        print(f"\nEnded within a step, with {self._newest()}", flush=True)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(exit_code_after(number))


# A forked process does not write its signals to the watchdog of its parent.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
