"""Profile of a training: the time that each of its parts takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torchrl_gpu.devices.kinds import accelerator_of
from trainers.profiling.parts import PARTS, enclosed

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer

OTHER = "other"  # the loop itself and the running sums of all metrics


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


class Profile:
    """Measures the parts of a training.

    A part lasts from the end of all earlier work on the devices to the end of its own work. The
    host waits for the devices at both ends of every part, so host and device never work at the same
    time, and a training on an accelerator takes longer with a profile than without. A call within
    another part, such as a policy step of an evaluation, counts for the outer part.

    Args:
        trainer: trainer to measure.
    """

    def __init__(self, trainer: TorchRLTrainer) -> None:
        self._trainer = trainer
        devices = {trainer.agent.device, trainer.collector.env.device}
        self._devices = [accelerator_of(device) for device in devices if device is not None]
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._is_within_a_part = False
        self._earlier = Amount()  # of earlier calls of `running`
        self._began: Amount | None = None
        self._reported: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the training for as long as the block lasts; may be entered several times."""
        with enclosed(self._trainer, self._part):
            self._began = self._read()
            try:
                yield
            finally:
                self._earlier, self._began = self.amount, None

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

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        if self._is_within_a_part:
            yield
            return
        self._is_within_a_part = True
        began = self._now()
        try:
            yield
        finally:
            self._is_within_a_part = False
            self._spent[name] += self._now() - began

    def _read(self) -> Amount:
        return Amount(self._now(), self._trainer.frames, self._trainer.updates)

    def _now(self) -> float:
        """Return the time at which the devices have done all work that is queued."""
        for device in self._devices:
            device.synchronize()
        return time.perf_counter()
