"""The measuring loop of all benchmarks: sides take turns, and medians are compared."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from benchmarks.fixture import CPU
from torchrl_gpu.devices.kinds import accelerator_of

Side = TypeVar("Side", bound=Hashable)
Call = Callable[[], object]
Run = Callable[[int], object]  # does a number of units of work: steps, frames, updates, ...
Measurement = Callable[[], float]  # returns the units per second of one measurement


@dataclass(frozen=True)
class Samples(Generic[Side]):
    """Units per second of several sides.

    Attributes:
        rates: one value of each side for each round; the values of a round were measured one after
            the other.
    """

    rates: Mapping[Side, list[float]]

    def rate(self, side: Side) -> float:
        """Return the median rate of a side."""
        return statistics.median(self.rates[side])

    def ratio(self, side: Side, other: Side) -> float:
        """Return the median over the rounds of a side's rate over that of another side.

        It compares neighbouring measurements, because the speed of a shared machine changes from
        round to round.
        """
        pairs = zip(self.rates[side], self.rates[other], strict=True)
        return statistics.median(one / two for one, two in pairs)


def take_turns(
    sides: Mapping[Side, Measurement], rounds: int = 1, seconds: float = 0.0
) -> Samples[Side]:
    """Measure all sides in turns, round by round, after a round that warms up.

    Args:
        sides: measurement of each side.
        rounds: minimum number of rounds.
        seconds: minimum duration of all rounds together.
    """
    for measure in sides.values():
        measure()
    rates: dict[Side, list[float]] = {side: [] for side in sides}
    done, end = 0, time.perf_counter() + seconds
    while done < rounds or time.perf_counter() < end:
        for side, measure in sides.items():
            rates[side].append(measure())
        done += 1
    return Samples(rates)


def timed(
    run: Run,
    units: int,
    *,
    per_unit: int = 1,
    device: torch.device = CPU,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Return the measurement of the rate of `run(units)`.

    Args:
        run: work to measure.
        units: number of units in one measurement.
        per_unit: number that one unit counts for, as a step of 64 environments does for 64.
        device: device that has to finish its queued work.
        clock: clock in seconds.
    """
    wait = accelerator_of(device).synchronize

    def measure() -> float:
        wait()
        start = clock()
        run(units)
        wait()
        return per_unit * units / (clock() - start)

    return measure


def times(call: Call, units: int = 1) -> Run:
    """Return a run that makes one call for every number of units."""

    def run(total: int) -> None:
        for _ in range(total // units):
            call()

    return run
