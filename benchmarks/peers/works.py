"""Works that can be measured, and the rates that result."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.measuring import Samples
from benchmarks.peers.jobs import (
    CARTPOLE,
    CARTPOLE_PPO,
    PENDULUM,
    RANDOM_PPO,
    SEAS_PPO,
    Side,
)


class Job(NamedTuple):
    """A job that several sides do.

    Attributes:
        name: name by which the libraries have their builders.
        title: heading of its column.
        units: number of units (updates or frames) in each round.
    """

    name: str
    title: str
    units: int


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
            Job("updates_ppo", "PPO", RANDOM_PPO.updates),
        ),
    ),
    "training": Work(
        "frames/s of training",
        (
            Job("training_sac", f"SAC {PENDULUM}", 150),
            Job("training_ppo", f"PPO {CARTPOLE}", 8 * CARTPOLE_PPO.frames),
        ),
    ),
    "seas": Work(
        "frames/s of training",
        # As many frames as lie between two checkpoints of this library, which writes one a round.
        (Job("seas_ppo", "PPO marinenav, 1,024 seas", 4 * SEAS_PPO.frames),),
    ),
}


class Result(NamedTuple):
    """Rates of all sides of one job.

    Attributes:
        work: name of the work.
        job: the job.
        samples: units per second of each side.
    """

    work: str
    job: Job
    samples: Samples[Side]

    @property
    def sides(self) -> list[Side]:
        """All sides."""
        return list(self.samples.rates)

    @property
    def ours(self) -> list[Side]:
        """The sides of this library."""
        return [side for side in self.sides if side.is_ours]

    @property
    def others(self) -> list[Side]:
        """The sides that this library is compared with."""
        return [side for side in self.sides if not side.is_ours]
