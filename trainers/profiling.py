"""Profile of a training, the time of each of its parts, and trace of some of its steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler import profile, record_function, schedule, supported_activities

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.tables import table
from torchrl_gpu.timers import NOTHING, PARTS, Part, Timers

logger = logging.getLogger(__name__)


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

    Args:
        counts: counts of the training, read whenever the profile is.
        devices: devices of agent and environment.
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


class Trace(Timers):
    """Records every operation of host and device during some steps, once updates have begun.

    Args:
        counts: counts of the training.
        steps: number of batched steps to record, at least 1.
        folder: folder of the file.

    Attributes:
        path: file with the trace; None before it is written.
    """

    def __init__(self, counts: Counts, steps: int, folder: Path) -> None:
        super().__init__()
        self._counts = counts
        self._steps = steps
        self._folder = folder
        self._updates_before = 0
        self._profiler: profile | None = None
        self.path: Path | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record once during a training, from the step after its first update on."""
        self._updates_before = self._counts.updates
        try:
            yield
        finally:
            self._stop()
        if self.path is None:
            logger.warning("no trace: the training ended too soon after its first update")

    def __call__(self, part: Part) -> AbstractContextManager[object]:
        """Name a part in the trace."""
        return NOTHING if self._profiler is None else record_function(part)

    def next_step(self) -> None:
        """Begin the recording, go on to its next step, or end it."""
        if self._profiler is not None:
            self._profiler.step()
            if self.path is not None:
                self._stop()
        elif self.path is None and self._counts.updates > self._updates_before:
            self._profiler = profile(
                activities=supported_activities(),
                # The first step after its start is slower than the others.
                schedule=schedule(wait=0, warmup=1, active=self._steps, repeat=1),
                on_trace_ready=self._write,
            )
            self._profiler.start()

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _write(self, profiler: profile) -> None:
        path = self._folder / f"trace_frames_{self._counts.frames:012d}.json.gz"
        profiler.export_chrome_trace(str(path))
        self.path = path
