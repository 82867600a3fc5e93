"""Works that can be measured, each with its jobs, and the rates that result."""

from __future__ import annotations

from functools import partial
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
        units: number of units in each round.
        rate: name of the rate, with the unit.
    """

    name: str
    title: str
    units: int
    rate: str = "frames/s of training"


_updates = partial(Job, rate="updates/s, replay sampling included")

WORKS = {
    "updates": (
        _updates("updates_sac", "SAC", 30),
        _updates("updates_ddpg", "DDPG", 40),
        _updates("updates_dqn", "DQN", 60),
        _updates("updates_iqn", "IQN", 6),
        _updates("updates_ppo", "PPO", RANDOM_PPO.updates),
    ),
    "training": (
        Job("training_sac", f"SAC {PENDULUM}", 150),
        Job("training_ppo", f"PPO {CARTPOLE}", 8 * CARTPOLE_PPO.frames),
    ),
    # As many frames as lie between two checkpoints of this library, which writes one a round.
    "seas": (Job("seas_ppo", "PPO marinenav, 1,024 seas", 4 * SEAS_PPO.frames),),
}


class Result(NamedTuple):
    """Rates of all sides of one job.

    Attributes:
        job: the job.
        samples: units per second of each side.
    """

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
