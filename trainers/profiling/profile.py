"""Profile of a training: the time that each of its parts takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.timers import PARTS, Part, Timers

OTHER = "other"  # the loop itself and the running sums of all metrics


class Counts(Protocol):
    """The counts of a training.

    Attributes:
        frames: environment steps so far.
        updates: gradient steps so far.
    """

    frames: int
    updates: int


class Amount(NamedTuple):
    """Amount of training.

    Attributes:
        seconds: wall-clock seconds.
        frames: environment steps.
        updates: gradient steps.
    """

    seconds: float = 0.0
    frames: int = 0
    updates: int = 0


class Profile(Timers):
    """Measures the parts of a training.

    A part lasts from the end of all earlier work on the devices to the end of its work. The host
    waits for the devices at both ends of every part, so host and device never work at the same
    time, and a training on an accelerator takes longer with a profile than without one.

    Args:
        counts: counts of the training, read whenever the profile is.
        devices: devices of agent and environment.
    """

    def __init__(self, counts: Counts, devices: Iterable[torch.device]) -> None:
        self._counts = counts
        self._devices = [accelerator_of(device) for device in set(devices)]
        self._spent: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._earlier = Amount()  # of earlier calls of `running`
        self._began: Amount | None = None
        self._reported: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure a training; may be entered several times."""
        self._began = self._read()
        try:
            yield
        finally:
            self._earlier, self._began = self.amount, None

    @contextmanager
    def __call__(self, part: Part) -> Iterator[None]:
        """Measure a part."""
        began = self._now()
        try:
            yield
        finally:
            if self._began is not None:
                self._spent[part] += self._now() - began

    @property
    def amount(self) -> Amount:
        """The training measured so far; a resumed run begins at 0."""
        if self._began is None:
            return self._earlier
        ranges = zip(self._earlier, self._read(), self._began, strict=True)
        seconds, frames, updates = (before + now - began for before, now, began in ranges)
        return Amount(seconds, int(frames), int(updates))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part so far, and of all the rest as `other`."""
        return {**self._spent, OTHER: self.amount.seconds - sum(self._spent.values())}

    def shares(self) -> dict[str, float]:
        """Return the share of each part in the time since the last call, as `time/PART`."""
        total = self.seconds()
        since = {part: seconds - self._reported.get(part, 0.0) for part, seconds in total.items()}
        self._reported, whole = total, sum(since.values())
        return {f"time/{part}": seconds / whole for part, seconds in since.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the seconds, frames and updates so far, and the seconds and share of each part."""
        amount = self.amount
        parts = {
            part: {"seconds": seconds, "share": seconds / amount.seconds}
            for part, seconds in self.seconds().items()
        }
        return {**amount._asdict(), "parts": parts}

    def _read(self) -> Amount:
        return Amount(self._now(), self._counts.frames, self._counts.updates)

    def _now(self) -> float:
        """Wait for all queued work of the devices, and return the time."""
        for device in self._devices:
            device.synchronize()
        return time.perf_counter()
