"""What the learning benchmark keeps of its runs: one JSON file for each agent and task."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from benchmarks.learning.tasks import GATES
from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.errors import ConfigurationError


@dataclass(frozen=True)
class Point:
    """An evaluation on the way.

    Attributes:
        frames: environment steps so far.
        seconds: since training began.
        score: mean return, or share of successful episodes.
    """

    frames: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Run:
    """What one run reached.

    Attributes:
        seed: of everything random.
        score: of the closing evaluation of its best policy.
        frames: environment steps of training.
        seconds: wall clock of the whole command.
        curve: the evaluations on the way.
    """

    seed: int
    score: float
    frames: int
    seconds: float
    curve: list[Point]


@dataclass(frozen=True)
class Series:
    """Runs of one command with several seeds.

    Attributes:
        algorithm: its name, for people.
        command: of the first seed.
        machine: what it ran on, and how many runs at a time.
        date: when, `2026-01-31`.
        runs: one for each seed, at least one.
    """

    algorithm: str
    command: str
    machine: str
    date: str
    runs: list[Run]

    @property
    def score(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(run.score for run in self.runs)

    @property
    def seconds(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(run.seconds for run in self.runs)

    def figures(self) -> dict[str, Any]:
        """Return what there is to tell but the curves."""
        return {
            "algorithm": self.algorithm,
            "score": round(self.score, 3),
            "scores": [round(run.score, 3) for run in self.runs],
            "seconds": round(self.seconds, 1),
            "frames": self.runs[0].frames,
        }


@dataclass(frozen=True)
class Result:
    """All there is of an agent on a task.

    Attributes:
        agent: as in `agent=dqn`.
        task: as in `task=cartpole`.
        measure: what the scores are.
        frames: the budget, environment steps.
        target: the score to reach within it, if any.
        ours: our runs; None before there were any.
        peer: those of Stable-Baselines3 at the same budget, likewise.
    """

    agent: str
    task: str
    measure: Literal["return", "success"]
    frames: int
    target: float | None
    ours: Series | None = None
    peer: Series | None = None

    @property
    def reached(self) -> bool | None:
        """Whether our mean reaches the target; None where either is missing."""
        if self.ours is None or self.target is None:
            return None
        return self.ours.score >= self.target

    @property
    def times_faster(self) -> float | None:
        """How much longer the peer took for the same budget; None where either is missing."""
        if self.ours is None or self.peer is None:
            return None
        return self.peer.seconds / self.ours.seconds

    def figures(self) -> dict[str, Any]:
        """Return what there is to tell but the curves."""
        return {
            "target": self.target,
            "reached": self.reached,
            "ours": self.ours and self.ours.figures(),
            "peer": self.peer and self.peer.figures(),
            "times_faster": self.times_faster and round(self.times_faster, 2),
        }


_RESULT = TypeAdapter(Result)


def write_result(result: Result, folder: Path) -> None:
    """Write a result into its file, in place of the one that is there.

    Raises:
        ConfigurationError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(_path(folder, result.agent, result.task)) as file:
        file.write(_RESULT.dump_json(result, indent=1) + b"\n")


def read_result(folder: Path, agent: str, task: str) -> Result | None:
    """Return the result of an agent on a task; None if there is none.

    Raises:
        ConfigurationError: the file holds something else.
    """
    path = _path(folder, agent, task)
    try:
        return _RESULT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigurationError(f"{path} is no result: {error.errors()[0]['msg']}") from None


def read_results(folder: Path) -> list[Result]:
    """Return all results in a folder, task by task.

    Two agents can stand beside the same peer: its runs at the same budget are shown with both.

    Raises:
        ConfigurationError: a file holds something else.
    """
    peers: dict[tuple[str, int, str], Series] = {}
    results = []
    for gate in GATES:
        result = read_result(folder, gate.agent, gate.task.name)
        if result is None:
            continue
        if gate.peer is not None:
            key = (result.task, result.frames, gate.peer)
            if result.peer is not None:
                peers[key] = result.peer
            result = replace(result, peer=peers.get(key))
        results.append(result)
    return results


def _path(folder: Path, agent: str, task: str) -> Path:
    return folder / f"{agent}_{task}.json"
