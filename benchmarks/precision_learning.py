"""Measure whether an agent learns as well in half precision as in single precision.

The runs of a task differ in precision and seed alone. The precisions take turns, each run in its
own process with one torch thread. A learning curve is compared at all of its evaluations, because
the closing evaluations of good policies hardly differ.

    python -m benchmarks.precision_learning
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from benchmarks.learning.results import Run
from benchmarks.learning.runs import OurJob, RunFailedError
from benchmarks.learning.tasks import TASKS, Gate
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.execution.precision import PrecisionName

# Agents, tasks, budgets in environment steps, and numbers of evaluations.
GATES: Final = (
    Gate(
        "sac", replace(TASKS["pendulum"], evaluations=5, closing_episodes=200), 10_000, target=None
    ),
    Gate(
        "sac",
        replace(TASKS["fanuc"], evaluations=4, evaluation_episodes=100, closing_episodes=300),
        50_000,
        target=None,
    ),
)


class Learned(NamedTuple):
    """A run in a precision."""

    precision: PrecisionName
    run: Run


def learn(
    *,
    task: Literal["pendulum", "fanuc", "all"] = "all",
    precision: PrecisionName = "bf16",
    seeds: Annotated[int, Field(ge=1)] = 3,
    frames: Annotated[int, Field(ge=10)] | None = None,
    runs: Path = Path("runs/precision_learning"),
) -> int:
    """Train each task in fp32 and another precision, and print the scores of all seeds.

    Args:
        task: task to learn: pendulum, fanuc or all (all).
        precision: precision beside fp32: tf32, bf16 or fp16 (bf16).
        seeds: number of seeds, starting at 0, at least 1 (3).
        frames: environment steps of each run, at least 10, instead of the tasks' own budgets.
        runs: folder of the runs (runs/precision_learning).

    Returns:
        0, or 1 if a run failed.
    """
    print_machine()
    folder = runs / time.strftime("%Y%m%d_%H%M%S")
    figures = {}
    for gate in GATES:
        if task not in (gate.task.name, "all"):
            continue
        gate = replace(gate, frames=frames or gate.frames)
        try:
            learned = [
                Learned(name, _train(gate, name, seed, folder))
                for seed in range(seeds)
                for name in ("fp32", precision)
            ]
        except RunFailedError as error:
            print(f"a run failed: {error}", file=sys.stderr)
            return 1
        figures[gate.name] = _report(gate, learned)
    print_figures(figures)
    return 0


def _train(gate: Gate, precision: PrecisionName, seed: int, folder: Path) -> Run:
    """Train an agent in a precision."""
    home = folder / gate.name / f"{precision}_{seed}"
    return OurJob.of(gate, seed, home, f"precision={precision}").run()


def _report(gate: Gate, learned: list[Learned]) -> dict[str, list[list[float]]]:
    """Print the table of a task, and return the curve and closing score of each run.

    The last rows are the mean of each precision, and in brackets the standard deviation between
    its seeds.
    """
    percent = gate.task.measure == "success"
    unit = "success, %" if percent else "mean return"
    factor = 100.0 if percent else 1.0
    scores: dict[str, list[list[float]]] = {}
    rows = []
    for precision, run in learned:
        points = [round(factor * p, 1) for p in (*(p.score for p in run.curve), run.score)]
        scores.setdefault(precision, []).append(points)
        rows.append([f"{precision}, seed {run.seed}", *(f"{point:.1f}" for point in points)])
    for name, curves in scores.items():
        columns = zip(*curves, strict=True)
        rows.append([f"{name}, mean (deviation)", *map(_spread, columns)])
    evaluated = [f"{point.frames:,}" for point in learned[0].run.curve]
    print(f"{gate.agent}, {gate.task.title}: {unit}, after frames")
    print_table(["precision", *evaluated, "best checkpoint"], rows)
    return scores


def _spread(scores: tuple[float, ...]) -> str:
    """Return the mean of some scores, and their standard deviation if there are several."""
    deviation = f" ({statistics.stdev(scores):.1f})" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.1f}{deviation}"


if __name__ == "__main__":
    sys.exit(call_with_arguments(learn))
