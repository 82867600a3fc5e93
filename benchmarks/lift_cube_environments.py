"""Measure how long lift_cube takes to learn by images with different numbers of environments.

Every run trains the preset `reach_pixels` with the same frames and updates per frame, in its own
process with one torch thread, one run at a time: first all numbers of environments with seed 0,
then with seed 1, and so on. The time ends with the first of ten evaluations of at least 90 %
success, and includes the evaluations. A run without one ends after its frames, and counts as never.

    python -m benchmarks.lift_cube_environments
    python -m benchmarks.lift_cube_environments sizes=[4] seeds=[1]
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, Json

from benchmarks.fixture import Sizes
from benchmarks.learning.results import Run
from benchmarks.learning.runs import OurJob
from benchmarks.learning.tasks import TASKS, Gate
from benchmarks.report import Figures, main, print_machine, print_table
from envs.settings import Seed
from trainers.runs.folders import new_folder

SUCCESS = 0.9
HEADER = ("environments", "minutes to 90 %", "each seed", "frames to 90 %", "success at the end")


def compare(
    *,
    sizes: Json[Sizes] = (1, 4, 16, 64),
    seeds: Json[Annotated[Sequence[Seed], Field(min_length=1)]] = (0, 1, 2),
    frames: Annotated[int, Field(ge=2_000)] = 40_000,
    runs: Path = Path("runs/lift_cube_environments"),
) -> Figures:
    """Train with each number of environments and print the minutes to 90 % success.

    Every run is printed when it ends, and the medians at the end.

    Args:
        sizes: numbers of environments, each at least 1 ([1,4,16,64]).
        seeds: seeds of the runs ([0,1,2]).
        frames: environment steps of each run, at least 2000 (40000).
        runs: folder of the runs (runs/lift_cube_environments).

    Raises:
        ConfigurationError: a run failed.
    """
    started = new_folder(runs)
    print_machine()
    print(f"runs: {started}\n", flush=True)
    results: dict[int, list[Run]] = {size: [] for size in sizes}
    for seed in seeds:
        for size in sizes:
            run = OurJob.of(_gate(size, frames), seed, started / f"{size}_{seed}").run()
            results[size].append(run)
            _, minutes, _, needed, success = row(size, [run])
            print(
                f"{size} environments, seed {seed}: minutes to 90 % {minutes}, frames {needed}, "
                f"success at the end {success}, whole run {run.seconds / 60:.1f} minutes",
                flush=True,
            )
    print()
    print_table(HEADER, [row(size, done) for size, done in results.items()])
    reached = {size: [run.reaches(SUCCESS) for run in done] for size, done in results.items()}
    return {
        str(size): {
            "seeds": list(seeds),
            "minutes": [point and round(point.seconds / 60, 2) for point in points],
            "frames": [point and point.frames for point in points],
        }
        for size, points in reached.items()
    }


def _gate(size: int, frames: int) -> Gate:
    task = replace(
        TASKS["reach_pixels"],
        arguments=("experiment=reach_pixels", f"env.num_envs={size}"),
        evaluations=10,
        closing_episodes=48,
    )
    return Gate("ddpg", task, frames)


def _text(minutes: float) -> str:
    return f"{minutes:.1f}" if math.isfinite(minutes) else "never"


def row(size: int, runs: list[Run]) -> list[str]:
    """Return a row of the table: the median minutes of all seeds, and the figures of each."""
    points = [run.reaches(SUCCESS) for run in runs]
    minutes = [point.seconds / 60 if point else math.inf for point in points]
    frames = [f"{point.frames:,}" if point else "never" for point in points]
    return [
        str(size),
        _text(statistics.median(minutes)),
        ", ".join(map(_text, minutes)),
        ", ".join(frames),
        ", ".join(f"{run.curve[-1].score:.0%}" for run in runs),
    ]


if __name__ == "__main__":
    main(compare)
