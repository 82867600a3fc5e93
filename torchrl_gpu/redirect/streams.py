"""Streams and events of `torch.cuda`, for a device that computes in the order of the calls."""

from __future__ import annotations

import time
from typing import Any

import torch


class _InOrder:
    """Work that runs in the order of the calls."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Wait for the work of the device."""
        torch.cuda.synchronize()


class Stream(_InOrder):
    """Replaces `torch.cuda.Stream`: work in any stream runs in the order of the calls."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.priority = priority

    def __enter__(self) -> Stream:
        """Return the stream."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: earlier work is done first."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: earlier work is done first."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record and return an event."""
        event = event or Event()
        event.record(self)
        return event


class Event(_InOrder):
    """Replaces `torch.cuda.Event`: its time is that of the host after the work before it."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any) -> None:
        self._enable_timing = enable_timing
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        """Record the time, if the event measures time, once earlier work is done."""
        if self._enable_timing:
            torch.cuda.synchronize()
            self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: earlier work is done first."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to a later one."""
        return 1000.0 * (end_event._seconds - self._seconds)
