"""Profile of a training: the time of each of its parts."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.tables import table
from torchrl_gpu.timers import PARTS, Part, Timers


class Counts(Protocol):
    """Environment steps and gradient steps of a training so far."""

    frames: int
    updates: int


class Amount(NamedTuple):
    """Wall-clock seconds, environment steps and gradient steps of a training."""

    seconds: float = 0.0
    frames: int = 0
    updates: int = 0


class Profile(Timers):
    """Measures the parts of a training.

    A part lasts from the end of all earlier work on the devices to the end of its work. The host
    waits for the devices at both ends of every part, so host and device never work at the same
    time, and a training on an accelerator takes longer with a profile than without one.
    """

    def __init__(self, counts: Counts, devices: Iterable[torch.device]) -> None:
        super().__init__()
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
        """Return the seconds of each part so far, and of the loop and all the rest as `other`."""
        return {**self._spent, "other": self.amount.seconds - sum(self._spent.values())}

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

    def table(self) -> str:
        """Return the time of each part as a table of text."""
        amount, rows = self.amount, []
        for part, seconds in {**self.seconds(), "all": amount.seconds}.items():
            per_unit = [
                _duration(seconds / count) if count else "-"
                for count in (amount.frames, amount.updates)
            ]
            rows.append([part, f"{seconds:.2f}", f"{seconds / amount.seconds:.1%}", *per_unit])
        return table(["part", "seconds", "share", "per frame", "per update"], rows)

    def _read(self) -> Amount:
        return Amount(self._now(), self._counts.frames, self._counts.updates)

    def _now(self) -> float:
        """Wait for all queued work of the devices, and return the time."""
        for device in self._devices:
            device.synchronize()
        return time.perf_counter()


def _duration(seconds: float) -> str:
    """Return a duration with three digits, in s, ms or us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
