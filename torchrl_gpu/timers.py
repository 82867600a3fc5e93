"""Timers around the parts of a training; they measure nothing unless a run asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, Literal, get_args

Part = Literal["simulate", "copy", "act", "store", "sample", "update", "log", "evaluate", "save"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

NOTHING: Final = nullcontext()


class Timers:
    """Timers of a training: `with timers("update"): ...` encloses a part; no part contains another.

    This class measures nothing. `Profile` and `Trace` override its methods.
    """

    def __call__(self, part: Part) -> AbstractContextManager[object]:
        """Return the context manager of a part."""
        return NOTHING

    def next_step(self) -> None:
        """Begin the next batched step of the training."""

    def running(self) -> AbstractContextManager[object]:
        """Return a context manager within which the training runs; entered once per `train`."""
        return NOTHING


class SeveralTimers(Timers):
    """Timers that measure together.

    Args:
        timers: the timers; the first one is the outermost.
    """

    def __init__(self, timers: Sequence[Timers]) -> None:
        self._timers = timers

    @contextmanager
    def __call__(self, part: Part) -> Iterator[None]:
        """Enclose a part by all timers."""
        with ExitStack() as stack:
            for timers in self._timers:
                stack.enter_context(timers(part))
            yield

    def next_step(self) -> None:
        """Begin the next batched step of the training."""
        for timers in self._timers:
            timers.next_step()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a training within all timers."""
        with ExitStack() as stack:
            for timers in self._timers:
                stack.enter_context(timers.running())
            yield


NO_TIMERS = Timers()
