"""Measure runs of two processes beside those of one, or kill a process of two.

Each process has a separate core. The runs take turns, seed by seed.

    python -m benchmarks.scale
    python -m benchmarks.scale kills=20

The first command prints frames per second and success of SAC on fanuc and of PPO at sea, and the
share of a step that two processes spend in the calls by which they share their values: waiting for
the other one, and exchanging. Where a GPU is at hand, it also compares one process under torchrun
with a run without it.

With `kills`, a process is killed (kill -9) at random moments, and the run has to end in time with a
line that names the process, leave nothing behind, and go on by the command of that line.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from pydantic import Field

from benchmarks.fixture import Count
from benchmarks.report import Figures, FiguresError, main, print_machine, print_table
from benchmarks.scale.exchange import measure_share
from benchmarks.scale.kills import LIMIT, kill_ranks
from benchmarks.scale.learning import COUNTS, TASKS, Learned, figures_of, learn, overlap, spread

# Shorter than the runs that learn: from the second row of metrics on, steps are alike.
_SHORT: Final = {
    "SAC, fanuc": ("trainer.total_frames=40000",),
    "PPO, at sea": ("trainer.total_frames=150000",),
}
_WITHOUT_EVALUATIONS: Final = (
    *("trainer.evaluation_interval=1000000000", "trainer.evaluation_episodes=2"),
    *("evaluation.episodes=1", "trainer.show_progress=false"),
)
_ON_GPU: Final = ("agent=sac", "env=marinenav", "device=cuda", "trainer.total_frames=150000")
_TORCHRUN: Final = ("torch.distributed.run", "--nproc-per-node=1", "-m")


def measure(
    *,
    seeds: Count = 3,
    kills: Annotated[int, Field(ge=0)] = 0,
    seed: int = 0,
) -> Figures:
    """Measure runs of one and two processes, or kill a process of two.

    Args:
        seeds: number of seeds of each training, from 0, at least 1 (3).
        kills: number of times that a process is killed; 0 to measure speed and learning (0).
        seed: seed of the moments (0).
    """
    print_machine()
    if kills:
        return print_kills(kills, seed)
    figures: dict[str, Any] = {}
    for title, arguments in TASKS.items():
        figures[title] = print_learning(title, arguments, seeds)
    figures["exchange"] = print_exchange()
    figures["one rank on a GPU"] = print_one_rank()
    return figures


def print_learning(title: str, arguments: Sequence[str], seeds: int) -> dict[str, Any]:
    """Train by each number of processes, and print rates and success of all seeds."""
    learned: dict[int, list[Learned]] = {count: [] for count in COUNTS}
    for seed in range(seeds):
        for count, runs in learned.items():
            more = ("device=cpu", f"devices={count}", f"seed={seed}", "threads=1")
            with tempfile.TemporaryDirectory() as folder:
                runs.append(learn([*arguments, *more], Path(folder), cores=count))
    rows = []
    for seed in range(seeds):
        one, two = (learned[count][seed] for count in COUNTS)
        rows.append([f"{seed}", *_cells(one, two), _together(one.interval, two.interval)])
    ratios = [two.rate / one.rate for one, two in zip(*learned.values(), strict=True)]
    means = [spread(runs) for runs in learned.values()]
    print(f"{title}, by one process and by two: {' '.join(arguments)}\n")
    header = ["seed", "frames/s, 1", "2", "ratio", "success, 1", "95 % interval"]
    print_table([*header, "success, 2", "95 % interval", "overlap"], rows)
    print(f"median ratio of frames/s {statistics.median(ratios):.2f}")
    for count, runs in learned.items():
        mean = statistics.fmean(each.successes / each.episodes for each in runs)
        print(
            f"{count} process(es): mean success {mean:.1%}, 95 % interval {_percent(spread(runs))}"
        )
    print(f"the intervals overlap: {_together(*means)}\n", flush=True)
    return {**figures_of(learned), "ratio": round(statistics.median(ratios), 3)}


def _cells(one: Learned, two: Learned) -> list[str]:
    success = [
        cell
        for each in (one, two)
        for cell in (f"{each.successes / each.episodes:.1%}", _percent(each.interval))
    ]
    return [f"{one.rate:,.0f}", f"{two.rate:,.0f}", f"{two.rate / one.rate:.2f}", *success]


def _percent(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def _together(one: tuple[float, float], two: tuple[float, float]) -> str:
    return "yes" if overlap(one, two) else "no"


def print_exchange() -> dict[str, Any]:
    """Print the share of a step in which two processes share their values."""
    shares = {}
    for title, arguments in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            more = (*_SHORT[title], *_WITHOUT_EVALUATIONS)
            shares[title] = measure_share([*arguments, *more], max(COUNTS), folder)
    print("two processes: share of the time of training in calls that share values")
    header = ["task", "waiting", "exchange", "calls per step", "ms per exchange", "ms per step"]
    rows = [
        [
            title,
            f"{share.waiting:.1%}",
            f"{share.exchange:.1%}",
            f"{share.calls:.1f}",
            f"{share.milliseconds:.3f}",
            f"{share.step_milliseconds:.1f}",
        ]
        for title, share in shares.items()
    ]
    print_table(header, rows)
    return {title: share._asdict() for title, share in shares.items()}


def print_one_rank() -> dict[str, float] | None:
    """Print the rate of one process under torchrun beside that without, on a GPU."""
    if torch.cuda.device_count() == 0:
        print("one rank against no distribution, on a GPU: no GPU here\n")
        return None
    rates = {}
    for title, launcher in {"no distribution": (), "one rank": _TORCHRUN}.items():
        with tempfile.TemporaryDirectory() as folder:
            rates[title] = learn(_ON_GPU, Path(folder), launcher=launcher).rate
    ratio = rates["one rank"] / rates["no distribution"]
    print(f"on a GPU: {' '.join(_ON_GPU)}")
    cells = [*(f"{rate:,.0f}" for rate in rates.values()), f"{ratio:.2f}"]
    print_table([*(f"frames/s, {title}" for title in rates), "ratio"], [cells])
    return rates


def print_kills(kills: int, seed: int) -> Figures:
    """Kill processes, and print how the runs ended and went on."""
    found, went_on = kill_ranks(kills, seed)
    seconds = [kill.seconds for kill in found]
    figures = {
        "kills": kills,
        f"ended within {LIMIT:.0f} s": sum(each < LIMIT for each in seconds),
        "rank named": sum(kill.named for kill in found),
        "processes left": sum(kill.left for kill in found),
        "went on": f"{sum(went_on)} of {len(went_on)}",
        "median seconds": round(statistics.median(seconds), 1),
        "slowest seconds": round(max(seconds), 1),
    }
    print_table(list(figures), [[f"{value}" for value in figures.values()]])
    for kill in found:
        if not kill.succeeded:
            print(kill)
    if not (all(went_on) and all(kill.succeeded for kill in found)):
        raise FiguresError(figures)
    return figures


if __name__ == "__main__":
    main(measure)
