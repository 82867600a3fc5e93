"""Measure success and wall-clock time of the README's training command over several seeds.

It runs `python -m trainers.run agent=sac env=fanuc seed=...` for one seed after another and reads
the files of the run. `seconds` is the time of the whole command, from its start to its end.

    python -m benchmarks.fanuc_learning
"""

from __future__ import annotations

import csv
import json
import pkgutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmarks.arguments import call_with_arguments
from benchmarks.extra import require
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.errors import ConfigurationError

MILESTONES = (0.90, 0.95, 0.98)
PICTURE = Path("docs/results/fanuc_learning.png")


@dataclass(frozen=True)
class Run:
    """Result of one run of the command.

    Attributes:
        success: success rate of the closing evaluation, 0 to 1.
        interval: 95 % confidence interval of the success rate.
        episodes: number of episodes of the closing evaluation.
        seconds: wall clock of the whole command.
        frames: environment steps of training.
        curve: evaluations during training: seconds since training began, and success rate.
    """

    success: float
    interval: tuple[float, float]
    episodes: int
    seconds: float
    frames: int
    curve: list[tuple[float, float]]

    def seconds_to(self, success: float) -> float | None:
        """Return the time of the first evaluation with at least that success rate, if any."""
        return next((seconds for seconds, reached in self.curve if reached >= success), None)


def train(seed: int, runs: Path, frames: int | None) -> Run:
    """Run the command with a seed and read its result."""
    command = [sys.executable, "-m", "trainers.run", "agent=sac", "env=fanuc", f"seed={seed}"]
    if frames is not None:
        command.append(f"trainer.total_frames={frames}")
    start = time.perf_counter()
    subprocess.run([*command, f"runs={runs}"], check=True)
    seconds = time.perf_counter() - start
    (folder,) = (runs / "fanuc" / "sac").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "metrics.csv").open() as file:
        curve = [
            (float(row["seconds"]), float(row["evaluation/success"]))
            for row in csv.DictReader(file)
            if row["evaluation/success"]
        ]
    return Run(
        summary["success"],
        (summary["success_low"], summary["success_high"]),
        summary["episodes"],
        seconds,
        summary["frames"],
        curve,
    )


def draw(results: dict[int, Run], path: Path) -> None:
    """Draw success rate over time, one line per seed."""
    figure, axes = pkgutil.resolve_name("matplotlib.pyplot:subplots")(figsize=(7, 4))
    for seed, result in results.items():
        axes.plot(
            [seconds / 60 for seconds, _ in result.curve],
            [100 * success for _, success in result.curve],
            marker=".",
            label=f"seed {seed}",
        )
    axes.axhline(98, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xlabel="minutes of training on two CPU cores",
        ylabel="targets reached within 15 mm, %",
        title="agent=sac env=fanuc, from scratch",
        ylim=(0, 101),
        xlim=(0, None),
    )
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def learn(
    *,
    seeds: Annotated[int, Field(ge=1)] = 3,
    frames: Annotated[int, Field(ge=1)] | None = None,
    runs: Path = Path("runs/benchmark"),
    picture: Path | None = None,
) -> int:
    """Train each seed, draw the learning curves, and print a table and a final JSON object.

    Args:
        seeds: number of seeds, starting at 0, at least 1 (3).
        frames: environment steps of each run, at least 1, instead of the command's own budget;
            needs `picture`.
        runs: folder of the runs (runs/benchmark).
        picture: file of the learning curves (docs/results/fanuc_learning.png).

    Raises:
        ConfigurationError: matplotlib is not installed, or `frames` is given without `picture`.
    """
    require("matplotlib")
    if frames is not None and picture is None:
        raise ConfigurationError(
            f"frames={frames}: not the command's own budget; name a picture for it: picture=..."
        )
    picture = picture or PICTURE
    print_machine()
    started = time.strftime("%Y%m%d_%H%M%S")
    results = {seed: train(seed, runs / started / f"seed_{seed}", frames) for seed in range(seeds)}
    draw(results, picture)

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f} s"

    print()
    print_table(
        ["seed", "success", "95 % interval", "whole command", "frames"]
        + [f"to {milestone:.0%}" for milestone in MILESTONES],
        [
            [
                str(seed),
                f"{run.success:.1%}",
                f"{run.interval[0]:.1%} to {run.interval[1]:.1%}",
                seconds(run.seconds),
                f"{run.frames:,}",
                *(seconds(run.seconds_to(milestone)) for milestone in MILESTONES),
            ]
            for seed, run in results.items()
        ],
    )
    print(f"\nlearning curves: {picture}\n")
    reached = list(results.values())
    print_figures(
        {
            "success": [run.success for run in reached],
            "seconds": [round(run.seconds, 1) for run in reached],
            "episodes": [run.episodes for run in reached],
            **{
                f"seconds_to_{100 * milestone:.0f}": [run.seconds_to(milestone) for run in reached]
                for milestone in MILESTONES
            },
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(learn))
