"""Pinned memory of the stand-in accelerator: copies that last until the host waits for an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

_pinned = WeakTensorKeyDictionary()
# Copies that the host has not waited for.
_under_way: list[_Copy] = []


class PinnedMemory(TorchFunctionMode):
    """Lets `pin_memory=True` allocate, for which torch needs a backend written in C++."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        is_pinned = options.pop("pin_memory", False)
        result = func(*args, **options)
        if is_pinned:
            _pinned[result] = True
        return result


def begin_copy(source: Tensor) -> None:
    """Note a copy without blocking; one from other memory than pinned ends within its call."""
    if source in _pinned:
        _under_way.append(_Copy(source, source._version))


@dataclass(eq=False)
class _Copy:
    """A copy from pinned memory, with the version of the memory that it has to read."""

    source: Tensor
    version: int


class Event:
    """Event of the only stream, such as `torch.cuda.Event`."""

    def __init__(self) -> None:
        self._before: list[_Copy] = []

    def record(self, stream: object) -> None:
        """Record the event after all copies that have begun."""
        self._before = list(_under_way)

    def synchronize(self) -> None:
        """Wait for the copies before the event.

        Raises:
            RuntimeError: the host has written to pinned memory that a copy had still to read.
        """
        for copy in self._before:
            if copy in _under_way:
                _under_way.remove(copy)
                if copy.source._version != copy.version:
                    raise RuntimeError("pinned memory was overwritten before the device read it")
        self._before = []


def current_stream(device: object = None) -> None:
    """Return the only stream, which has no state of its own."""
