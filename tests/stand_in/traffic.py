"""Count what passes between the host and the stand-in accelerator, and who asked for it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import tensordict
import torch

Kind = Literal["read", "copy to host", "copy to device", "synchronize"]

# Frames of these are not who asked: the caller above them is.
_PASSED_OVER = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(tensordict.__file__).parent}{os.sep}",
    *(str(Path(__file__).with_name(name)) for name in ("backend.py", "tensor.py", "traffic.py")),
    "<",  # code without a file
)

_counting: list[HostTraffic] = []


class Event(NamedTuple):
    """One reason why host and accelerator met.

    Args:
        kind: what happened.
        operation: the torch operation, as in `_local_scalar_dense` for `.item()`.
        place: file and line of the nearest caller outside torch and tensordict.
    """

    kind: Kind
    operation: str
    place: str


class HostTraffic:
    """How often the host met the accelerator while this was counting."""

    def __init__(self) -> None:
        self.events: Counter[Event] = Counter()

    @property
    def host_reads(self) -> int:
        """Times that the host had to wait for the accelerator, copies to the host included."""
        return self._total("read", "copy to host", "synchronize")

    @property
    def copies(self) -> int:
        """Copies between host and accelerator, both ways."""
        return self._total("copy to host", "copy to device")

    @property
    def copies_to_host(self) -> int:
        """Copies from the accelerator to the host; each is a host read too."""
        return self._total("copy to host")

    @property
    def copies_to_device(self) -> int:
        """Copies from the host to the accelerator."""
        return self._total("copy to device")

    def report(self) -> str:
        """Return one line for each reason, the most frequent first."""
        return "\n".join(
            f"{count:6d}  {event.kind:14}  {event.operation:28}  {event.place}"
            for event, count in self.events.most_common()
        )

    def _total(self, *kinds: Kind) -> int:
        return sum(count for event, count in self.events.items() if event.kind in kinds)


@contextmanager
def count_host_reads() -> Iterator[HostTraffic]:
    """Count within the block. Blocks may be nested; each counts for itself."""
    traffic = HostTraffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


def record(kind: Kind, operation: str) -> None:
    """Add one event to every counter at work."""
    if _counting:
        event = Event(kind, operation, _caller())
        for traffic in _counting:
            traffic.events[event] += 1


def _caller() -> str:
    """Return file and line of the nearest frame that asked."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
