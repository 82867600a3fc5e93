"""Measure how long `torchrl-gpu compare` takes, from the start of Python to the written page.

The run folders have the settings of SAC on fanuc and metrics of the size of a run of its preset
that is logged and evaluated ten times as often: `rows` rows of the columns that SAC logs, one in
five of them an evaluation. Five learning rates, each with as many seeds, make five groups. One run
of each group has a film. The import of torch alone, which the command does without, stands beside.

    python -m benchmarks.compare
"""

import csv
import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, Json

from benchmarks.fixture import Count, Sizes
from benchmarks.report import Figures, main, print_machine, print_table
from benchmarks.startup import time_of_answer
from trainers.run import settings_of

GROUPS = 5
FRAMES = 300_000
FILM = Path(__file__).parents[1] / "docs/results/fanuc_demo.gif"

# Columns of a row of metrics, beside those of an evaluation.
_LOGGED = (
    *("frames_per_second", "episode/return", "episode/length", "episode/success", "episode/count"),
    *("loss/critic", "loss/actor", "loss/temperature", "sac/value", "sac/temperature"),
    *("sac/entropy", "curriculum/grade", "workers/lost_episodes"),
    *("system/cpu_percent", "system/memory_bytes"),
)
_EVALUATED = ("evaluation/success", "evaluation/return", "evaluation/length")


def make_runs(folder: Path, count: int, rows: int) -> None:
    """Write run folders.

    Args:
        folder: folder of all runs.
        count: number of runs, at least 1; fewer groups than `GROUPS` where it is smaller.
        rows: number of rows of each.
    """
    for number in range(count):
        seed, group = divmod(number, GROUPS)
        run = folder / "fanuc" / "sac" / f"20260101_{number:06d}"
        (run / "videos").mkdir(parents=True)
        rate = f"agent.learning_rate={1e-3 * 2.0**-group}"
        settings = settings_of("agent=sac", "env=fanuc", f"seed={seed}", rate, "device=cpu")
        (run / "config.yaml").write_text(settings.of_run(), encoding="utf-8")
        success = _write_metrics(run / "metrics.csv", np.random.default_rng(number), group, rows)
        summary = {"env": "fanuc", "ended": True, "episodes": 500, "success": success}
        summary |= {"success_low": success, "success_high": success}
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        if seed == 0:
            (run / "videos" / FILM.name).write_bytes(FILM.read_bytes())


def _write_metrics(path: Path, random: np.random.Generator, group: int, rows: int) -> float:
    """Write metrics that approach a success of 1, and return the last success."""
    success = 0.0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["frames", "seconds", *_LOGGED, *_EVALUATED])
        for row in range(1, rows + 1):
            frames = FRAMES * row // rows
            values = [*random.random(len(_LOGGED)), *[""] * len(_EVALUATED)]
            if row % 5 == 0:
                expected = 1 - np.exp(-frames / 20_000 / (1 + group))
                success = float(random.binomial(200, expected) / 200)
                values = [*[""] * len(_LOGGED), success, 7 * success, 150 - 130 * success]
            writer.writerow([frames, frames / 8000, *values])
    return success


def measure(
    *,
    sizes: Json[Sizes] = (1, 25, 100),
    rows: Annotated[int, Field(ge=5)] = 300,
    starts: Count = 5,
) -> Figures:
    """Measure several starts of each command in turns, and print the medians.

    Args:
        sizes: numbers of runs to compare ([1,25,100]).
        rows: number of rows of metrics of each run, one in five an evaluation, at least 5 (300).
        starts: number of starts, at least 1 (5).
    """
    print_machine()
    with tempfile.TemporaryDirectory() as temporary:
        commands, pages, megabytes = {}, {}, {}
        for size in sizes:
            name, folder = f"compare, {size} runs", Path(temporary, str(size))
            make_runs(folder, size, rows)
            pages[name] = folder / "page.html"
            output = f"output={pages[name]}"
            commands[name] = ["-m", "trainers.run", "compare", str(folder), output]
        commands["import torch"] = ["-c", "import torch"]
        spent = []
        for _ in range(starts):
            spent.append({name: time_of_answer(command) for name, command in commands.items()})
            for name, page in pages.items():
                megabytes[name] = f"{page.stat().st_size / 2**20:.1f}"
                page.unlink()  # the command refuses a file that exists
    table: list[list[str]] = []
    figures: dict[str, float] = {}
    for name in commands:
        seconds, cpu = map(statistics.median, zip(*(each[name] for each in spent), strict=True))
        table.append([name, f"{seconds:.2f}", f"{cpu:.2f}", megabytes.get(name, "-")])
        figures[name.replace(", ", "_").replace(" ", "_")] = round(seconds, 2)
    print_table(["until", "seconds", "processor seconds", "MiB of the page"], table)
    return figures


if __name__ == "__main__":
    main(measure)
