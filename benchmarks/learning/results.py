"""Results of the learning benchmark: one JSON file for each agent and task."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from benchmarks.learning.tasks import GATES
from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.errors import ConfigurationError


@dataclass(frozen=True)
class Point:
    """An evaluation during training.

    Attributes:
        frames: environment steps so far.
        seconds: seconds since training began.
        score: mean return, or success rate from 0 to 1.
    """

    frames: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Run:
    """Result of one run.

    Attributes:
        seed: seed of all random numbers.
        score: score of the closing evaluation of the best policy.
        frames: environment steps of training.
        seconds: wall clock of the whole command.
        curve: evaluations during training.
        episodes: number of episodes of the closing evaluation; None if unknown.
    """

    seed: int
    score: float
    frames: int
    seconds: float
    curve: list[Point]
    episodes: int | None = None

    def reaches(self, level: float) -> Point | None:
        """Return the first evaluation with at least a score; None if there is none."""
        return next((point for point in self.curve if point.score >= level), None)


@dataclass(frozen=True)
class Series:
    """Runs of one command with several seeds.

    Attributes:
        algorithm: name of the algorithm, as printed.
        command: command of the first seed.
        machine: description of the machine, and number of parallel runs.
        date: date of the runs, as in `2026-01-31`.
        runs: one run for each seed, at least one.
    """

    algorithm: str
    command: str
    machine: str
    date: str
    runs: list[Run]

    @property
    def score(self) -> float:
        """Mean score of the runs."""
        return statistics.fmean(run.score for run in self.runs)

    @property
    def seconds(self) -> float:
        """Mean wall clock of the runs, in seconds."""
        return statistics.fmean(run.seconds for run in self.runs)


@dataclass(frozen=True)
class Result:
    """Result of an agent on a task.

    Attributes:
        agent: name of the agent, as in `agent=dqn`.
        task: name of the task, as in `task=cartpole`.
        measure: unit of the scores: mean return, or success rate from 0 to 1.
        frames: budget in environment steps.
        target: score to reach within the budget; None for no target.
        ours: runs of this library.
        peer: runs of Stable-Baselines3 at the same budget; None if there are none.
    """

    agent: str
    task: str
    measure: Literal["return", "success"]
    frames: int
    target: float | None
    ours: Series
    peer: Series | None = None


_RESULT = TypeAdapter(Result)


def write_result(result: Result, folder: Path) -> None:
    """Write a result to its file and replace an existing one.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    with atomic_file(_path(folder, result.agent, result.task)) as file:
        file.write(_RESULT.dump_json(result, indent=1) + b"\n")


def read_results(folder: Path) -> list[Result]:
    """Return all results in a folder, task by task.

    Raises:
        ConfigurationError: a file does not hold a result.
    """
    results = []
    for gate in GATES:
        path = _path(folder, gate.agent, gate.task.name)
        if not path.is_file():
            continue
        try:
            results.append(_RESULT.validate_json(path.read_bytes()))
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ConfigurationError(f"{path} is not a result: {problem}") from None
    return results


def _path(folder: Path, agent: str, task: str) -> Path:
    return folder / f"{agent}_{task}.json"
