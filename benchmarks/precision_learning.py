"""Measure whether an agent learns as well in half precision as in single precision.

The runs of a task differ in precision and seed alone. The precisions take turns, each run in its
own process with one torch thread. A learning curve is compared at all of its evaluations, because
the closing evaluations of good policies hardly differ.

    python -m benchmarks.precision_learning
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from benchmarks.fixture import Count
from benchmarks.learning.results import Run
from benchmarks.learning.runs import OurJob, new_folder
from benchmarks.learning.tasks import TASKS, Gate
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments

_PENDULUM = replace(TASKS["pendulum"], evaluations=5, closing_episodes=200)
_FANUC = replace(TASKS["fanuc"], evaluations=4, evaluation_episodes=100, closing_episodes=300)

# Agents, tasks and budgets in environment steps.
GATES: Final = (
    Gate("sac", _PENDULUM, 10_000, target=None),
    Gate("sac", _FANUC, 50_000, target=None),
)


def learn(
    *,
    task: Literal["pendulum", "fanuc", "all"] = "all",
    seeds: Count = 3,
    runs: Path = Path("runs/precision_learning"),
) -> int:
    """Train each task in fp32 and bf16, and print the scores of all seeds.

    Args:
        task: task to learn: pendulum, fanuc or all (all).
        seeds: number of seeds, starting at 0, at least 1 (3).
        runs: folder of the runs (runs/precision_learning).

    Raises:
        ConfigurationError: a run failed.
    """
    print_machine()
    folder = new_folder(runs)
    figures = {}
    for gate in GATES:
        if task in (gate.task.name, "all"):
            learned: list[tuple[str, Run]] = []
            for seed in range(seeds):
                for name in ("fp32", "bf16"):
                    home = folder / gate.name / f"{name}_{seed}"
                    job = OurJob.of(gate, seed, home, f"precision={name}")
                    learned.append((name, job.run()))
            figures[gate.name] = _report(gate, learned)
    print_figures(figures)
    return 0


def _report(gate: Gate, learned: list[tuple[str, Run]]) -> dict[str, list[list[float]]]:
    """Print the table of a task, and return the curve and closing score of each run.

    The last rows are the mean of each precision, and in brackets the standard deviation between
    its seeds.

    Args:
        gate: agent and task.
        learned: all runs, each with its precision.
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
    evaluated = [f"{point.frames:,}" for point in learned[0][1].curve]
    print(f"{gate.agent}, {gate.task.title}: {unit}, after frames")
    print_table(["precision", *evaluated, "best checkpoint"], rows)
    return scores


def _spread(scores: tuple[float, ...]) -> str:
    """Return the mean of some scores, and their standard deviation if there are several."""
    deviation = f" ({statistics.stdev(scores):.1f})" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.1f}{deviation}"


if __name__ == "__main__":
    sys.exit(call_with_arguments(learn))
