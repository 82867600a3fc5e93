"""Measure acting and gradient steps on one CPU thread and on several, for small and large networks.

Both numbers of threads use the same agent and the same batches and are measured in turns.

    python -m benchmarks.threads
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from agents.base import Agent
from agents.dqn import DQN
from agents.iqn import IQN
from agents.sac import SAC
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments

CPU = torch.device("cpu")
NUM_ENVS, BATCH = 64, 256
OBSERVATION_DIM, ACTION_DIM, NUM_ACTIONS = 21, 6, 13  # those of the environment fanuc
PIXELS = (3, 64, 64)
WIDTHS = (128, 256, 1_024)
_SHORTEST_SECONDS = 0.05  # of one measurement, which repeats shorter calls


def vectors(size: int) -> Composite:
    """Return the spec of `size` observations that are vectors."""
    return Composite(observation=Unbounded((size, OBSERVATION_DIM)), shape=(size,))


def images(size: int) -> Composite:
    """Return the spec of `size` observations that are images."""
    pixels = Bounded(0, 255, (size, *PIXELS), dtype=torch.uint8)
    return Composite(pixels=pixels, shape=(size,))


def moves(size: int) -> TensorSpec:
    """Return the spec of `size` continuous actions."""
    return Bounded(-1.0, 1.0, (size, ACTION_DIM))


def choices(size: int) -> TensorSpec:
    """Return the spec of `size` discrete actions."""
    return Categorical(NUM_ACTIONS, shape=(size,), dtype=torch.int64)


def build_cases() -> Iterator[tuple[str, Agent]]:
    """Yield each agent with the name of its case: agents by width of two layers, then on pixels."""
    for width in WIDTHS:
        hidden = (width, width)
        yield f"sac_{width}", SAC(vectors(1), moves(1), CPU, hidden_sizes=hidden)
        yield f"dqn_{width}", DQN(vectors(1), choices(1), CPU, hidden_sizes=hidden)
        yield f"iqn_{width}", IQN(vectors(1), choices(1), CPU, hidden_sizes=hidden)
    yield "sac_pixels", SAC(images(1), moves(1), CPU)
    yield "dqn_pixels", DQN(images(1), choices(1), CPU)


def transitions(agent: Agent) -> TensorDictBase:
    """Return `BATCH` random transitions."""
    see = vectors if "observation" in agent.policy.in_keys else images
    act = moves if agent.policy.is_continuous else choices
    ends = torch.zeros(BATCH, 1, dtype=torch.bool)
    after = see(BATCH).rand().update({"terminated": ends, "truncated": ends})
    after["reward"] = torch.randn(BATCH, 1)
    return see(BATCH).rand().update({"action": act(BATCH).rand(), "next": after})


def calls_per_second(call: Callable[[], object], threads: int) -> float:
    """Return the calls per second with a number of threads."""
    torch.set_num_threads(threads)
    calls, start, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < _SHORTEST_SECONDS:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
    return calls / elapsed


def measure(call: Callable[[], object], threads: int, seconds: float) -> tuple[float, float]:
    """Return the median calls per second with one thread and with several, measured in turns."""
    call()  # warms up
    samples: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        samples.append((calls_per_second(call, 1), calls_per_second(call, threads)))
    return statistics.median(s[0] for s in samples), statistics.median(s[1] for s in samples)


def compare(
    *,
    threads: Annotated[int, Field(ge=1)] | None = None,
    seconds: Annotated[float, Field(gt=0.0)] = 3.0,
) -> int:
    """Measure policy steps and gradient steps on one thread and on several, and print the medians.

    Args:
        threads: number of threads that is compared with one, at least 1 (null: one per core).
        seconds: duration of the measurements of each row in seconds, above 0 (3).
    """
    several = threads or os.cpu_count() or 1
    print_machine()
    print(f"{NUM_ENVS} observations per policy step, {BATCH} transitions per gradient step\n")
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for name, agent in build_cases():
        batch = transitions(agent)
        seen = TensorDict({key: batch[key][:NUM_ENVS] for key in agent.policy.in_keys}, NUM_ENVS)
        for kind, call in {
            "policy": torch.no_grad()(lambda agent=agent, seen=seen: agent.policy(seen)),
            "gradient": lambda agent=agent, batch=batch: agent.update(batch),
        }.items():
            one, more = measure(call, several, seconds)
            rows.append([name, kind, f"{one:,.1f}", f"{more:,.1f}", f"{more / one:.2f}"])
            figures[f"{name}_{kind}_1"] = round(one, 1)
            figures[f"{name}_{kind}_{several}"] = round(more, 1)
    header = ["agent", "step", "1 thread, steps/s", f"{several} threads, steps/s", "times faster"]
    print_table(header, rows)
    print()
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(compare))
