"""Measure how cost grows with environments, batch and width, one curve each.

The three curves are: a batched step of the sea with SAC's policy acting, over the number of seas; a
gradient step of an agent over the number of transitions, with two layers of 256; and over the width
of both layers, with 256 transitions. Costs for each sea, transition and parameter that fall along a
curve show that the overhead of a call is spread over more work. All figures are medians.

    python -m benchmarks.growth
    python -m benchmarks.growth device=cuda agent=ppo picture=growth.png
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, Json

from agents.sac import SAC
from benchmarks.execution import build_agent, build_batch
from benchmarks.extra import require
from benchmarks.report import print_figures, print_machine, print_table
from envs.marinenav import MarineNavEnv
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents

Sizes = Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=1)]
Batches = Annotated[Sequence[Annotated[int, Field(ge=8, multiple_of=8)]], Field(min_length=1)]

BATCH, WIDTH = 256, 256
_FEWEST_CALLS = 3


class Curve(NamedTuple):
    """Seconds of one call over a size.

    Attributes:
        call: name of the call.
        size: name of the size.
        unit: name of one of `size`.
        seconds: seconds of a call for each size.
    """

    call: str
    size: str
    unit: str
    seconds: dict[int, float]


def seconds_of(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the median seconds of a call, repeated for `seconds` in all."""
    wait = accelerator_of(device).synchronize
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _FEWEST_CALLS or time.perf_counter() < end:
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def acting(seas: int, device: torch.device) -> Callable[[], object]:
    """Return a function that acts once in every sea."""
    env = MarineNavEnv(num_envs=seas, device=device)
    agent = SAC(observation_spec(env), action_spec(env), device, hidden_sizes=(WIDTH, WIDTH))
    collector = BatchCollector(env, device, agent.policy.in_keys)
    return lambda: collector.step(agent.policy)


def learning(agent_name: str, width: int, rows: int, device: torch.device) -> Callable[[], object]:
    """Return a function that takes one gradient step on `rows` transitions."""
    agent = build_agent(learning_agents()[agent_name], width, rows, device)
    batch = build_batch(agent, rows)
    return lambda: agent.update(batch)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw a panel for each curve, with logarithmic axes."""
    plt = importlib.import_module("matplotlib.pyplot")
    figure, panels = plt.subplots(1, len(curves), figsize=(4.5 * len(curves), 3.6))
    for panel, curve in zip(panels, curves, strict=True):
        sizes = list(curve.seconds)
        panel.loglog(sizes, [1e3 * s for s in curve.seconds.values()], marker="o")
        first = 1e3 * curve.seconds[sizes[0]]
        proportional = [first * size / sizes[0] for size in sizes]
        panel.loglog(sizes, proportional, color="silver", label="proportional to the first")
        panel.set(title=curve.call, xlabel=curve.size, ylabel="ms")
        panel.legend()
        panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(curves: Sequence[Curve]) -> None:
    """Print a table for each curve, and all figures as one JSON object."""
    figures: dict[str, Any] = {}
    for curve in curves:
        rows = [
            [f"{size:,}", f"{1e3 * s:.2f}", f"{1e6 * s / size:.2f}"]
            for size, s in curve.seconds.items()
        ]
        print(curve.call)
        print_table([curve.size, "ms", f"us / {curve.unit}"], rows)
        print()
        figures[curve.size] = {size: round(1e3 * s, 3) for size, s in curve.seconds.items()}
    print_figures(figures)


def measure(
    *,
    agent: str = "sac",
    device: str = "auto",
    threads: Annotated[int, Field(ge=1)] = 1,
    seconds: Annotated[float, Field(gt=0.0)] = 3.0,
    envs: Json[Sizes] = (1, 4, 16, 64, 256, 1024, 4096, 16384),
    batches: Json[Batches] = (64, 256, 1024, 4096, 16384, 32768),
    widths: Json[Sizes] = (64, 128, 256, 512, 1024),
    picture: Path | None = None,
) -> int:
    """Measure the three curves and print them.

    Args:
        agent: agent whose gradient step is measured (sac).
        device: compute device: auto, cpu, cuda, ... (auto).
        threads: number of CPU threads of PyTorch, at least 1 (1).
        seconds: duration of the measurement of each point in seconds, above 0 (3).
        envs: numbers of seas, each at least 1 ([1,4,16,64,256,1024,4096,16384]).
        batches: numbers of transitions, multiples of 8 ([64,256,1024,4096,16384,32768]).
        widths: widths of the two layers, each at least 1 ([64,128,256,512,1024]).
        picture: file of the curves, for instance growth.png (none).

    Raises:
        ConfigurationError: there is no such agent or device, or matplotlib is not installed for the
            picture.
    """
    if picture is not None:
        require("matplotlib")
    if agent not in learning_agents():
        raise ConfigurationError(
            f"agent={agent}: there is no such agent; there are {', '.join(learning_agents())}"
        )
    resolved = resolve_device(device)
    torch.set_num_threads(threads)
    keep_freed_memory()
    print_machine()
    print(f"on {describe_device(resolved)}\n")

    def curve(
        call: str,
        size: str,
        unit: str,
        sizes: Sequence[int],
        build: Callable[[int], Callable[[], object]],
    ) -> Curve:
        return Curve(call, size, unit, {n: seconds_of(build(n), resolved, seconds) for n in sizes})

    curves = [
        curve("a step of all seas, acting", "seas", "sea", envs, lambda n: acting(n, resolved)),
        curve(
            f"a gradient step of {agent}",
            "transitions",
            "transition",
            batches,
            lambda n: learning(agent, WIDTH, n, resolved),
        ),
        curve(
            f"a gradient step of {agent}",
            "width",
            "neuron of a layer",
            widths,
            lambda n: learning(agent, n, BATCH, resolved),
        ),
    ]
    if picture is not None:
        draw(curves, picture)
    report(curves)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
