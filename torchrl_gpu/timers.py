"""Timers around the parts of a training; they measure nothing unless a run asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, Literal, get_args

Part = Literal["simulate", "copy", "act", "store", "sample", "update", "log", "evaluate", "save"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

NOTHING: Final = nullcontext()


class Timers:
    """Timers of a training: `with timers("update"): ...` encloses a part; no part contains another.

    `Profile` and `Trace` override the methods. This class itself measures nothing; given other
    timers, it lets them measure together, the first one outermost.
    """

    def __init__(self, *timers: Timers) -> None:
        self._timers = timers

    def __call__(self, part: Part) -> AbstractContextManager[object]:
        """Return the context manager of a part."""
        return _together(*(timers(part) for timers in self._timers)) if self._timers else NOTHING

    def next_step(self) -> None:
        """Begin the next batched step of the training."""
        for timers in self._timers:
            timers.next_step()

    def running(self) -> AbstractContextManager[object]:
        """Return a context manager within which the training runs; entered once per `train`."""
        return _together(*(timers.running() for timers in self._timers))


@contextmanager
def _together(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


NO_TIMERS = Timers()
