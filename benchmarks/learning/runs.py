"""Runs of the learning benchmark: the command of each run, and the files that it writes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.results import Point, Run
from benchmarks.learning.tasks import Gate
from torchrl_gpu.errors import ConfigurationError
from trainers.comparing.runs import read_run


@dataclass(frozen=True)
class Job:
    """A run to carry out.

    Attributes:
        algorithm: name of the algorithm.
        seed: seed of all random numbers.
        arguments: arguments of the Python interpreter.
        folder: folder of this run alone, which does not exist yet.
        threads: number of threads of OpenMP, at least 1; None for its own choice.
    """

    algorithm: str
    seed: int
    arguments: tuple[str, ...]
    folder: Path
    threads: int | None = 1

    @property
    def command(self) -> str:
        """The command as a user would type it, without the folders of this machine."""
        local = ("runs=/", "out=/")
        return shlex.join(("python", *(a for a in self.arguments if not a.startswith(local))))

    def run(self) -> Run:
        """Carry out the run in its own process and read its result.

        Raises:
            ConfigurationError: the run ended with an error; the message holds the last line of its
                output.
        """
        self.folder.mkdir(parents=True)
        log = self.folder / "output.txt"
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        start = time.perf_counter()
        with log.open("wb") as output:
            code = subprocess.run(
                [sys.executable, *self.arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **threads},
            ).returncode
        seconds = time.perf_counter() - start
        if code != 0:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise ConfigurationError(f"exit code {code}: {last}; full output: {log}")
        return self._read(seconds)

    def _read(self, seconds: float) -> Run:
        raise NotImplementedError


class OurJob(Job):
    """A run of `python -m trainers.run`."""

    @classmethod
    def of(cls, gate: Gate, seed: int, folder: Path) -> OurJob:
        """Return the run of an agent on a task with a seed."""
        interval = gate.frames // gate.task.evaluations
        arguments = (
            *("-m", "trainers.run", *gate.arguments, f"seed={seed}"),
            *("device=cpu", "threads=1", f"trainer.total_frames={gate.frames}"),
            f"trainer.evaluation_interval={interval}",
            f"trainer.evaluation_episodes={gate.task.evaluation_episodes}",
            f"evaluation.episodes={gate.task.closing_episodes}",
            f"runs={folder}",
        )
        return cls(gate.agent, seed, arguments, folder)

    def _read(self, seconds: float) -> Run:
        (path,) = self.folder.rglob("summary.json")
        run = read_run(path.parent)
        columns = (run.curve[name].tolist() for name in ("frames", "seconds", "score"))
        curve = [Point(int(f), s, score) for f, s, score in zip(*columns, strict=True)]
        summary = run.summary
        return Run(self.seed, run.score, summary["frames"], seconds, curve, summary["episodes"])


class PeerJob(Job):
    """A run of `python -m benchmarks.stable_baselines`."""

    @classmethod
    def of(cls, gate: Gate, seed: int, folder: Path) -> PeerJob:
        """Return the peer's run for an agent on a task with a seed."""
        assert gate.peer is not None
        arguments = (
            *("-m", "benchmarks.stable_baselines", f"algorithm={gate.peer}"),
            *(f"task={gate.task.name}", f"seed={seed}", f"frames={gate.frames}"),
            f"out={folder / 'summary.json'}",
        )
        return cls(gate.peer, seed, arguments, folder)

    def _read(self, seconds: float) -> Run:
        summary = json.loads((self.folder / "summary.json").read_text())
        curve = [Point(**point) for point in summary["curve"]]
        return Run(self.seed, summary["score"], summary["frames"], seconds, curve)
