"""Signals that ask a program to end, which its worker processes leave to it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torchrl_gpu.errors import INTERRUPTED, START_AGAIN

# Those that the system has: Ctrl-C, a supervisor, a terminal that closes, and schedulers.
STOP_SIGNALS: Final = [
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if name in signal.Signals.__members__
]

# Signals whose second one ends a training at once. A terminal that closes sends SIGHUP more than
# once, and a scheduler repeats its warning.
INSISTENT: Final = frozenset[int]((signal.SIGINT, signal.SIGTERM))

# One request may arrive twice: `timeout`, for instance, signals its child and then their group.
SECONDS_OF_ONE_REQUEST: Final = 0.5


def exit_code_after(number: int) -> int:
    """Return the exit code of a program that a signal has ended: 75, or 130 after Ctrl-C."""
    return INTERRUPTED if number == signal.SIGINT else START_AGAIN


def ignore_stop_signals() -> None:
    """Let this worker process ignore the signals; it ends with the pipe to its parent."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    release_stop_signals()


def release_stop_signals() -> None:
    """Let this process receive the signals, see `stop_signals_held`."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def stop_signals_held(*but: int) -> Iterator[None]:
    """Keep the signals, but for some, from threads and processes that are started in the block.

    A process receives them once it ignores or releases them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS} - {*but})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_signals_deferred() -> Iterator[None]:
    """Call the handlers of signals that arrive in the block after it, because it may catch theirs.

    Signals without a handler keep their effect; so do all of them in a thread other than the main
    one, in which Python calls no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    arrived: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for request in arrived:
            signal.raise_signal(request)
