"""Measure how long lift_cube takes to learn by images with different numbers of environments.

Every run trains the preset `reach_pixels`, in its own process with one torch thread, one run at a
time: first all numbers of environments with seed 0, then with seed 1, and so on. The time ends with
the first evaluation of at least 90 % success, and includes the evaluations.

    python -m benchmarks.lift_cube_environments
"""

import statistics
import sys
from dataclasses import replace
from pathlib import Path

from pydantic import Json

from benchmarks.fixture import Count, Sizes
from benchmarks.learning.results import Point, Run
from benchmarks.learning.runs import OurJob, new_folder
from benchmarks.learning.tasks import TASKS, Gate
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments

SUCCESS = 0.9
_FRAMES = 40_000
HEADER = ("environments", "minutes to 90 %", "each seed", "frames to 90 %", "success at the end")


def compare(
    *,
    sizes: Json[Sizes] = (1, 4, 16, 64),
    seeds: Count = 3,
    runs: Path = Path("runs/lift_cube_environments"),
) -> int:
    """Train with each number of environments and print the minutes to 90 % success.

    Args:
        sizes: numbers of environments, each at least 1 ([1,4,16,64]).
        seeds: number of seeds, starting at 0, at least 1 (3).
        runs: folder of the runs (runs/lift_cube_environments).

    Raises:
        ConfigurationError: a run failed.
    """
    started = new_folder(runs)
    print_machine()
    print(f"runs: {started}\n", flush=True)
    results: dict[int, list[Run]] = {size: [] for size in sizes}
    for seed in range(seeds):
        for size in sizes:
            job = OurJob.of(_gate(size), seed, started / f"{size}_{seed}")
            results[size].append(job.run())
    print_table(HEADER, [_row(size, done) for size, done in results.items()])
    reached = {size: [_reached(run) for run in done] for size, done in results.items()}
    print_figures(
        {
            str(size): {
                "minutes": [point and round(point.seconds / 60, 2) for point in points],
                "frames": [point and point.frames for point in points],
            }
            for size, points in reached.items()
        }
    )
    return 0


def _gate(size: int) -> Gate:
    task = replace(
        TASKS["reach_pixels"],
        arguments=("experiment=reach_pixels", f"env.num_envs={size}"),
        evaluations=10,
        closing_episodes=48,
    )
    return Gate("ddpg", task, _FRAMES)


def _reached(run: Run) -> Point | None:
    """Return the first evaluation with enough success; None if there is none."""
    return next((point for point in run.curve if point.score >= SUCCESS), None)


def _row(size: int, runs: list[Run]) -> list[str]:
    points = [_reached(run) for run in runs]
    minutes = [point.seconds / 60 if point else float("inf") for point in points]
    frames = [f"{point.frames:,}" if point else "never" for point in points]
    return [
        str(size),
        f"{statistics.median(minutes):.1f}",
        ", ".join(f"{each:.1f}" for each in minutes),
        ", ".join(frames),
        ", ".join(f"{run.curve[-1].score:.0%}" for run in runs),
    ]


if __name__ == "__main__":
    sys.exit(call_with_arguments(compare))
