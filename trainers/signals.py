"""Signals that end the program; a training is saved first."""

import _thread
import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from torchrl_gpu.signals import (
    INSISTENT,
    SECONDS_OF_ONE_REQUEST,
    STOP_SIGNALS,
    exit_code_after,
    ignore_stop_signals,
)

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer


class Interruption(KeyboardInterrupt):
    """A signal has ended the run; the message, if there is one, says how to go on.

    Attributes:
        number: the signal.
        agreed: whether all processes of the run end with it, so that none waits for another one.
    """

    def __init__(
        self, number: int = signal.SIGINT, message: str = "", *, agreed: bool = False
    ) -> None:
        super().__init__(number, message)  # both, so that it can be pickled
        self.number = number
        self.agreed = agreed

    def __str__(self) -> str:
        return str(self.args[1])

    @classmethod
    def of(cls, cause: KeyboardInterrupt, message: str) -> "Interruption":
        """Return the interruption with a message."""
        agreed = getattr(cause, "agreed", False)
        return cls(getattr(cause, "number", signal.SIGINT), message, agreed=agreed)


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code after a signal: 130 after Ctrl-C, 75 after any other one."""
    return exit_code_after(Interruption.of(stop, "").number)


def leave(stop: KeyboardInterrupt) -> NoReturn:
    """End a process of several at once, which another thread may still connect to the others."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or its reader has gone
            stream.flush()
    os._exit(exit_code(stop))


class EndOfProgram:
    """Handler of signals outside of a training.

    Attributes:
        must_clean_up: whether there is something to clean up, so that an exception ends the
            program. In the middle of an import it would be lost, or print pages.
        interruption: the last such exception; libraries may turn it into another one.
    """

    def __init__(self) -> None:
        self.must_clean_up = False
        self.process = os.getpid()
        self.raised = -math.inf  # time of the last exception
        self.interruption: Interruption | None = None
        self.report = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Exit, or raise `Interruption`."""
        if os.getpid() != self.process:
            return  # a worker process that was forked ends with its pipe
        if not self.must_clean_up:
            os._exit(exit_code_after(number))
        if time.monotonic() - self.raised > SECONDS_OF_ONE_REQUEST:
            self.raised = time.monotonic()
            self.interruption = Interruption(number)
            raise self.interruption

    def raise_later(self, lost: "sys.UnraisableHookArgs") -> None:
        """Raise an exception again that Python cannot raise where it arose, as in a destructor."""
        if isinstance(lost.exc_value, Interruption):
            self.raised = -math.inf
            threading.Timer(0.05, _signal_main_thread, [lost.exc_value.number]).start()
        else:
            self.report(lost)


def _signal_main_thread(number: int) -> None:
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)  # also ends a system call in which it waits
    else:
        _thread.interrupt_main(signal.Signals(number))


@contextmanager
def program_ends() -> Iterator[None]:
    """Let signals end the program in the block: at once, or see `cleans_up`, by `Interruption`.

    After it, they are ignored while Python exits: libraries clean up then, such as ray, which
    torchrl imports, and the exit code is that of the first signal.
    """
    end = EndOfProgram()
    sys.unraisablehook = end.raise_later
    try:
        with handled(end):
            yield
    finally:
        sys.unraisablehook = end.report
        atexit.register(ignore_stop_signals)


@contextmanager
def cleans_up(message: str = "") -> Iterator[None]:
    """Let signals that end the program raise `Interruption` in the block, which cleans up.

    The block ends with this exception, also where a library has turned it into another one. With a
    message, the exception has it.
    """
    end = signal.getsignal(signal.SIGINT)
    if not isinstance(end, EndOfProgram):  # a script, which handles signals itself
        yield
        return
    before, end.must_clean_up = end.must_clean_up, True
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        is_another = not isinstance(error, KeyboardInterrupt)
        if end.interruption is not None and (message or is_another):
            raise Interruption(end.interruption.number, message) from None
        raise
    finally:
        end.must_clean_up = before


def stops(trainer: "TorchRLTrainer") -> AbstractContextManager[Mapping[int, float]]:
    """Let signals stop a training after its step; yield when each first arrived, by number.

    A second Ctrl-C or SIGTERM raises `Interruption`, and so does the first signal in a step that
    the watchdog has reported, because it may never end.
    """

    def stop(number: int, since: float) -> None:
        trainer.stop_requested = True
        is_repeated = number in INSISTENT and since > SECONDS_OF_ONE_REQUEST
        if is_repeated or trainer.watchdog.reports:
            raise Interruption(number)

    return handled_first(stop)


@contextmanager
def handled_first(handler: Callable[[int, float], object]) -> Iterator[Mapping[int, float]]:
    """Handle the signals in the block; yield when each first arrived, by number.

    Handlers of a script, such as one that queues the job anew, are called after the block.

    Args:
        handler: function of a signal and of the seconds since it first arrived.
    """
    process = os.getpid()
    arrived: dict[int, float] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            now = time.monotonic()
            handler(number, now - arrived.setdefault(number, now))

    with handled(note) as before:
        yield arrived
    for number in arrived:
        own = before[number]
        is_of_program = isinstance(own, EndOfProgram) or own is signal.default_int_handler
        if callable(own) and not is_of_program:
            own(number, None)


@contextmanager
def handled(handler: Any) -> Iterator[dict[int, Any]]:
    """Handle the signals in the block; yield their handlers before it.

    Ignored are those that are ignored already, as SIGHUP by `nohup`. Only Ctrl-C and SIGTERM are
    handled even then: a shell lets every job that ends with `&` ignore Ctrl-C.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other one can handle signals
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handled = [
        n for n, was in before.items() if n in INSISTENT or was not in (signal.SIG_IGN, None)
    ]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number in handled:
            signal.signal(number, before[number])
