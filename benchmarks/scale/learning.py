"""Trainings by one process and by two, each process on a separate core."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from torchrl_gpu.devices.host import ONE_THREAD, usable_cores
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.intervals import wilson_interval
from trainers.comparing.runs import read_run

ROOT: Final = Path(__file__).parents[2]
COUNTS: Final = (1, 2)  # numbers of processes

# Arguments of the main program, by the title of the task. PPO learns seas of two vessels
# without buoys in a tenth of the frames of its preset.
TASKS: Final[Mapping[str, tuple[str, ...]]] = {
    "SAC, fanuc": ("agent=sac", "env=fanuc", "trainer.total_frames=60000"),
    "PPO, at sea": (
        *("agent=ppo", "env=marinenav", "trainer.total_frames=300000"),
        *("env.curriculum=false", "env.num_robots=2", "env.num_obstacles=0"),
        "trainer.evaluation_interval=100000",
    ),
}


class Learned(NamedTuple):
    """Result of a run.

    Attributes:
        rate: frames per second of training, the median of the rows of its metrics.
        episodes: number of closing episodes.
        successes: number of these that succeeded.
    """

    rate: float
    episodes: int
    successes: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate."""
        return wilson_interval(self.successes, self.episodes)


def learn(
    arguments: Sequence[str], runs: Path, *, cores: int | None = None, launcher: Sequence[str] = ()
) -> Learned:
    """Carry out a run of the main program.

    Args:
        arguments: arguments of the main program.
        runs: folder for this run alone.
        cores: number of cores that the run may use; None for all.
        launcher: module that starts the program, and its arguments.

    Raises:
        ConfigurationError: the run has failed; the message is the last line of its output.
    """
    usable = usable_cores()[:cores]

    def pin() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, usable)

    done = subprocess.run(
        [sys.executable, "-m", *launcher, "trainers.run", *arguments, f"runs={runs}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD},
        preexec_fn=pin if os.name == "posix" else None,
    )
    if done.returncode != 0:
        raise ConfigurationError(f"a run failed: {done.stdout.strip().splitlines()[-1]}")
    (path,) = runs.rglob("summary.json")
    run = read_run(path.parent)
    rate, episodes = np.nanmedian(run.metric("frames_per_second")), run.summary["episodes"]
    return Learned(float(rate), episodes, round(episodes * run.score))


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether two intervals overlap."""
    return one[0] <= other[1] and other[0] <= one[1]


def spread(runs: Sequence[Learned]) -> tuple[float, float]:
    """Return the 95 % interval of the mean success of a few runs, by Student's distribution.

    Seeds differ by more than their episodes do by chance, which Wilson's interval leaves out.
    """
    rates = [each.successes / each.episodes for each in runs]
    mean, margin = statistics.fmean(rates), 1.0
    quantiles = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
    if 2 <= len(rates) <= len(quantiles) + 1:
        quantile = quantiles[len(rates) - 2]
        margin = quantile * statistics.stdev(rates) / len(rates) ** 0.5
    return max(0.0, mean - margin), min(1.0, mean + margin)


def figures_of(learned: Mapping[int, Sequence[Learned]]) -> dict[str, Any]:
    """Return rates and success of all seeds, by number of processes."""
    return {
        f"{count}": {
            "frames_per_second": [round(each.rate, 1) for each in runs],
            "success": [round(each.successes / each.episodes, 4) for each in runs],
        }
        for count, runs in learned.items()
    }
