"""Counter of host reads and copies between host and stand-in accelerator, by caller."""

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

from tests.stand_in.graphs import refuse_in_capture

Kind = Literal["read", "copy to host", "copy to device", "synchronize"]

_FILES = ("backend.py", "cpu.py", "tensor.py", "traffic.py")
# Stack frames in these files are skipped: the caller is the first frame outside them.
_PASSED_OVER = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(tensordict.__file__).parent}{os.sep}",
    *(str(Path(__file__).with_name(name)) for name in _FILES),
    "<",  # code without a file
)

_counting: list[HostTraffic] = []


class Event(NamedTuple):
    """One host read or copy.

    Args:
        kind: kind of traffic.
        operation: torch operation, such as `_local_scalar_dense` for `.item()`.
        place: file and line of the nearest caller outside torch and tensordict.
    """

    kind: Kind
    operation: str
    place: str


class HostTraffic:
    """Numbers of host reads and copies in a `count_host_reads` block."""

    def __init__(self) -> None:
        self.events: Counter[Event] = Counter()

    @property
    def host_reads(self) -> int:
        """Number of operations that blocked the host, copies to the host included."""
        return self._total("read", "copy to host", "synchronize")

    @property
    def copies(self) -> int:
        """Number of copies between host and accelerator, in both directions."""
        return self._total("copy to host", "copy to device")

    @property
    def copies_to_host(self) -> int:
        """Number of copies from the accelerator to the host; each is also a host read."""
        return self._total("copy to host")

    @property
    def copies_to_device(self) -> int:
        """Number of copies from the host to the accelerator."""
        return self._total("copy to device")

    def report(self) -> str:
        """Return one line per distinct event, the most frequent first."""
        return "\n".join(
            f"{count:6d}  {event.kind:14}  {event.operation:28}  {event.place}"
            for event, count in self.events.most_common()
        )

    def _total(self, *kinds: Kind) -> int:
        return sum(count for event, count in self.events.items() if event.kind in kinds)


@contextmanager
def count_host_reads() -> Iterator[HostTraffic]:
    """Count the traffic within the block. Nested blocks count independently."""
    traffic = HostTraffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


def record(kind: Kind, operation: str) -> None:
    """Add one event to all active counters; raise within a capture, which forbids it."""
    refuse_in_capture(operation)
    if _counting:
        event = Event(kind, operation, _caller())
        for traffic in _counting:
            traffic.events[event] += 1


def _caller() -> str:
    """Return file and line of the nearest caller outside the skipped files."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
