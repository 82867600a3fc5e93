"""Works that can be measured, and the rates and ratios that result."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.peers.jobs import UPDATES_A_ROLLOUT, Side
from benchmarks.peers.tasks import CARTPOLE, PENDULUM, PPO_TASK, SEAS_TASK


class Job(NamedTuple):
    """A job that several sides do.

    Attributes:
        name: name by which the libraries have their builders.
        title: heading of its column.
        units: number of units (updates, frames, steps or batches) in each round.
        variants: variants of this library that are compared with all other sides; None for all.
    """

    name: str
    title: str
    units: int
    variants: tuple[str, ...] | None = None

    def is_ours(self, side: Side) -> bool:
        """Return whether a side stands for this library in the comparisons."""
        is_chosen = self.variants is None or side.variant in self.variants
        return side.library == "ours" and is_chosen


class Work(NamedTuple):
    """Jobs of one kind.

    Attributes:
        title: heading of the table, with the unit.
        jobs: the jobs.
    """

    title: str
    jobs: tuple[Job, ...]


WORKS = {
    "updates": Work(
        "updates/s, replay sampling included",
        (
            Job("updates_sac", "SAC", 30),
            Job("updates_ddpg", "DDPG", 40),
            Job("updates_dqn", "DQN", 60),
            Job("updates_iqn", "IQN", 6),
            Job("updates_ppo", "PPO", UPDATES_A_ROLLOUT),
        ),
    ),
    "training": Work(
        "frames/s of training",
        (
            Job("training_sac", f"SAC {PENDULUM}", 150),
            Job("training_ppo", f"PPO {CARTPOLE}", 8 * PPO_TASK.num_envs * PPO_TASK.rollout_length),
        ),
    ),
    "collection": Work(
        "frames/s of collection",
        tuple(
            Job(f"collection_{size}", f"collection, {title}", size * steps)
            for size, steps, title in (
                (1, 2_000, "1 environment"),
                (64, 1_000, "64 environments"),
                (1_024, 100, "1,024 environments"),
            )
        ),
    ),
    "sampling": Work(
        "batches/s from 1e6 transitions",
        (
            Job("sampling", "replay sampling", 500, variants=("prioritized",)),
            Job("priorities", "and new priorities", 300),
        ),
    ),
    "seas": Work(
        "frames/s of training",
        # As many frames as lie between two checkpoints by default: this library writes one a round.
        (Job("seas_ppo", "PPO marinenav, 1,024 seas", 4 * SEAS_TASK.frames),),
    ),
}


@dataclass(frozen=True)
class Measurement:
    """Rates of all sides of one job.

    Attributes:
        work: name of the work.
        job: the job.
        rates: units per second of each side, one value for each round; the values of one round were
            measured one after the other.
    """

    work: str
    job: Job
    rates: Mapping[Side, Sequence[float]]

    def rate(self, side: Side) -> float:
        """Return the median rate of a side."""
        return statistics.median(self.rates[side])

    def ratio(self, side: Side, other: Side) -> float:
        """Return the median over the rounds of a side's rate over that of another side."""
        pairs = zip(self.rates[side], self.rates[other], strict=True)
        return statistics.median(one / two for one, two in pairs)

    @property
    def ours(self) -> list[Side]:
        """The sides that stand for this library."""
        return [side for side in self.rates if self.job.is_ours(side)]

    @property
    def others(self) -> list[Side]:
        """The sides that this library is compared with."""
        return [side for side in self.rates if not self.job.is_ours(side)]

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each pair of a side of this library and another side."""
        return [
            {
                "work": self.job.name,
                "side": str(side),
                "against": str(other),
                "ours": round(self.rate(side), 2),
                "peer": round(self.rate(other), 2),
                "ratio": round(self.ratio(side, other), 3),
            }
            for other in self.others
            for side in self.ours
        ]
