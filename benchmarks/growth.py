"""Measure how cost grows with environments, batch and width, one curve each.

The three curves are: a batched step of the sea with SAC's policy acting, over the number of seas; a
gradient step of an agent over the number of transitions, with two layers of 256; and over the width
of both layers, with 256 transitions. Costs for each sea, transition and parameter that fall along a
curve show that the overhead of a call is spread over more work. All figures are medians.

    python -m benchmarks.growth
    python -m benchmarks.growth device=cuda agent=ppo picture=growth.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, Json

from agents.sac import SAC
from benchmarks.execution import Case
from benchmarks.fixture import BATCH, HIDDEN, WIDTH, Count, Seconds, Sizes
from benchmarks.measuring import Call, repeated, take_turns
from benchmarks.report import picture as draw
from benchmarks.report import print_figures, print_machine, print_table, require
from envs.marinenav import MarineNavEnv
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents

Batches = Annotated[Sequence[Annotated[int, Field(ge=8, multiple_of=8)]], Field(min_length=1)]

_ROUNDS = 3  # minimum number of measurements of a point


class Curve(NamedTuple):
    """A call over a size.

    Attributes:
        call: name of the call.
        size: name of the size.
        unit: name of one of `size`.
        sizes: sizes to measure.
        build: builds the call of a size.
    """

    call: str
    size: str
    unit: str
    sizes: Sequence[int]
    build: Callable[[int], Call]


def acting(seas: int, device: torch.device) -> Call:
    """Return a function that acts once in every sea."""
    env = MarineNavEnv(num_envs=seas, device=device)
    agent = SAC(observation_spec(env), action_spec(env), device, hidden_sizes=HIDDEN)
    collector = BatchCollector(env, device, agent.policy.in_keys)
    return lambda: collector.step(agent.policy)


def measure(
    *,
    agent: str = "sac",
    device: str = "auto",
    threads: Count = 1,
    seconds: Seconds = 3.0,
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
        ConfigurationError: the agent or the device does not exist, or matplotlib is not installed
            for the picture.
    """
    if picture is not None:
        require("matplotlib")
    agents = learning_agents()
    if agent not in agents:
        raise ConfigurationError(
            f"agent={agent}: unknown agent; choose one of: {', '.join(agents)}"
        )
    resolved = resolve_device(device)
    torch.set_num_threads(threads)
    keep_freed_memory()
    print_machine()
    print(f"on {describe_device(resolved)}\n")

    def learning(width: int, rows: int) -> Call:
        return Case(agents[agent], width, rows, resolved).step()

    gradient = f"a gradient step of {agent}"
    curves = (
        Curve("a step of all seas, acting", "seas", "sea", envs, lambda n: acting(n, resolved)),
        Curve(gradient, "transitions", "transition", batches, lambda n: learning(WIDTH, n)),
        Curve(gradient, "width", "neuron of a layer", widths, lambda n: learning(n, BATCH)),
    )
    figures: dict[str, dict[int, float]] = {}
    for curve in curves:
        milliseconds = {}
        for size in curve.sizes:
            point = {size: repeated(curve.build(size), device=resolved)}
            milliseconds[size] = 1e3 / take_turns(point, _ROUNDS, seconds).rate(size)
        print(curve.call)
        print_table(
            [curve.size, "ms", f"us / {curve.unit}"],
            [[f"{n:,}", f"{ms:.2f}", f"{1e3 * ms / n:.2f}"] for n, ms in milliseconds.items()],
        )
        figures[curve.size] = {size: round(ms, 3) for size, ms in milliseconds.items()}
    if picture is not None:
        with draw(picture, len(curves), size=(4.5, 3.6)) as panels:
            for panel, curve in zip(panels, curves, strict=True):
                sizes, costs = zip(*figures[curve.size].items(), strict=True)
                panel.loglog(sizes, costs, marker="o")
                proportional = [costs[0] * size / sizes[0] for size in sizes]
                panel.loglog(sizes, proportional, color="silver", label="proportional to the first")
                panel.set(title=curve.call, xlabel=curve.size, ylabel="ms")
                panel.legend()
                panel.grid(alpha=0.3)
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
