"""Measure the most telling ratios of speed again, beside those of the last release.

Each ratio sets the speed of this library over that of a reference measured in turns with it, so
that ratios of different days can be compared. A ratio that fell by more than 15 % is marked, and
the exit code is 1. The run takes a few minutes, on one CPU thread apart from the workers of fanuc.

    python -m benchmarks.trend
    python -m benchmarks.trend output=docs/results/trend.json    # keeps the ratios, for a release
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from agents.sac import SAC
from benchmarks import fanuc, marinenav, policy, replay, startup
from benchmarks.fixture import CPU, OBSERVATION_DIM, Count, build_agent, random_steps, specs
from benchmarks.measuring import Run, take_turns, timed, times
from benchmarks.peers.jobs import WORKS
from benchmarks.peers.libraries import builders_of
from benchmarks.report import Figures, FiguresError, machine, main, print_machine, print_table
from envs.marinenav import MarineNavEnv
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.errors import ConfigurationError

KEPT = Path(__file__).parents[1] / "docs/results/trend.json"
TOLERANCE = 0.15  # share of a ratio that the noise of a shared machine may take
_ROWS, _ARMS, _ARM_STEPS = 1_024, 64, 6_400
_Ratios = TypeAdapter(dict[str, float])


def over(ours: Run, reference: Run, units: int, rounds: int, fewer: int = 1) -> float:
    """Return the ratio of the rates of two runs, in turns; the reference does `fewer` times less.

    The seconds are CPU time, which other programs on the machine do not lengthen.
    """
    measure = partial(timed, clock=time.process_time)
    sides = {"ours": measure(ours, units), "reference": measure(reference, units // fewer)}
    return take_turns(sides, rounds).ratio("ours", "reference")


def updates(algorithm: str, rounds: int) -> float:
    """Return the ratio of updates of this library to those of plain PyTorch."""
    job = next(job for job in WORKS["updates"] if job.name == f"updates_{algorithm}")
    ours, plain = (builders_of(name)[job.name][""]() for name in ("ours", "plain"))
    return over(ours, plain, job.units, rounds)


@torch.no_grad()
def acting(rounds: int) -> float:
    """Return the ratio of acting for a batch to acting for one row after the other."""
    agent = build_agent(SAC, *specs(1))
    observation = torch.randn(_ROWS, OBSERVATION_DIM)
    wrapper, loop = (
        times(partial(way(agent), observation)) for way in (policy.batched, policy.one_by_one)
    )
    return over(wrapper, loop, 100, rounds, fewer=50)


def collecting(rounds: int) -> float:
    """Return the ratio of acting and storing in fanuc to a plain PyBullet loop."""
    with closing(fanuc.Ours(_ARMS)) as team:
        sides = team.measurements(_ARM_STEPS)
        keys = ("collect", _ARMS), ("raw", _ARMS)
        return take_turns({key: sides[key] for key in keys}, rounds).ratio(*keys)


def seas(rounds: int) -> float:
    """Return the ratio of steps of marinenav to those of the plain loop over its tensors."""
    plain = marinenav.plain_steps(marinenav.OVERHEAD_SEAS, CPU)
    return over(random_steps(MarineNavEnv(num_envs=marinenav.OVERHEAD_SEAS)), plain, 20, rounds)


def sampling(rounds: int) -> float:
    """Return the ratio of prioritized to uniform sampling."""
    samples = replay.measure_replays(1_000_000, rounds, CPU)
    return samples.ratio(("prioritized", "sample"), ("uniform", "sample"))


def starting(rounds: int) -> float:
    """Return the ratio of the import of torch to the whole start until the first update."""
    startup.times_of_training()  # fills the cache of targets
    sides = {
        "ours": lambda: 1.0 / startup.times_of_training()["first update"].cpu,
        "torch": lambda: 1.0 / startup.time_of_answer(["-c", "import torch"]).cpu,
    }
    return take_turns(sides, rounds).ratio("ours", "torch")


RATIOS: Mapping[str, Callable[[int], float]] = {
    "update of SAC over plain PyTorch": partial(updates, "sac"),
    "update of DQN over plain PyTorch": partial(updates, "dqn"),
    "update of PPO over plain PyTorch": partial(updates, "ppo"),
    f"acting for {_ROWS:,} rows over a loop": acting,
    "collecting in fanuc over PyBullet": collecting,
    "stepping marinenav over its plain loop": seas,
    "prioritized over uniform sampling": sampling,
    "first update over importing torch": starting,
}


def read(path: Path) -> dict[str, float]:
    """Return the ratios of a file that this command has written.

    Raises:
        ConfigurationError: the file cannot be read, or does not hold ratios.
    """
    try:
        return _Ratios.validate_python(json.loads(path.read_text())["ratios"])
    except (OSError, ValueError, TypeError, KeyError, ValidationError):
        raise ConfigurationError(
            f"kept={path}: not a file of ratios; write one with output={path}"
        ) from None


def lost(ratios: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """Return the names of the ratios that fell by more than the tolerance."""
    return [name for name in ratios if ratios[name] < (1.0 - TOLERANCE) * kept.get(name, 0.0)]


def report(ratios: Mapping[str, float], kept: Mapping[str, float]) -> Figures:
    """Print ratios beside kept ones, and return them; a lost one fails the benchmark."""
    slower = lost(ratios, kept)
    rows = []
    for name, ratio in ratios.items():
        old = kept.get(name)
        change = ["", ""] if old is None else [f"{old:.2f}", f"{ratio / old - 1.0:+.0%}"]
        rows.append([name, f"{ratio:.2f}", *change, "lost" if name in slower else ""])
    print_table(["speed", "ratio", "kept", "change", ""], rows)
    figures = {"ratios": ratios, "lost": slower}
    if slower:
        raise FiguresError(figures)
    return figures


def measure(*, rounds: Count = 5, kept: Path | None = None, output: Path | None = None) -> Figures:
    """Measure all ratios, and print them beside kept ones; it ends with 1 if one of them is lost.

    Args:
        rounds: number of rounds of each ratio after a first one that warms up, at least 1 (5).
        kept: file of the ratios to compare with; docs/results/trend.json without it.
        output: file to write the ratios to; none without it.

    Raises:
        ConfigurationError: the file of kept ratios cannot be read.
    """
    before = read(kept or KEPT) if kept or KEPT.exists() else {}
    torch.set_num_threads(1)
    keep_freed_memory()
    print_machine()
    ratios = {}
    for name, ratio in RATIOS.items():
        torch.manual_seed(0)
        ratios[name] = round(ratio(rounds), 3)
    if output is not None:
        output.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=2) + "\n")
    return report(ratios, before)


if __name__ == "__main__":
    main(measure)
