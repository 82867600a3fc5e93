"""Measure gradient steps per second of every agent in each precision: eager, compiled, captured.

All executions of an agent learn from the same batch and are measured in turns, round by round; the
figures are medians of the rounds. PyTorch has one thread; on a CPU the seconds are CPU time, which
other programs on the machine do not lengthen. Compilation takes up to a minute for each agent and
precision. Graphs are captured where the device has them, of eager and of compiled updates.

A second table says how far the parameters of a compiled or captured agent are from those of an
eager one after 50 gradient steps from the same random state on the same batches, as a share of how
far training has moved them.

    python -m benchmarks.execution
    python -m benchmarks.execution images=true
"""

import importlib
import logging
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.base import Agent
from benchmarks.fixture import (
    BATCH,
    HIDDEN,
    WIDTH,
    Count,
    build_agent,
    gradient_step,
    kind_of,
    random_batch,
    specs,
)
from benchmarks.images import IMAGE_BATCH, IMAGE_HIDDEN, IMAGE_SIZE, build_image_agent
from benchmarks.measuring import take_turns, timed, times
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.options import CompileMode, GraphMode
from torchrl_gpu.execution.precision import precisions_of
from trainers.components.choices import learning_agents

STEPS = 10  # gradient steps in each round
AGREEMENT_STEPS = 50


class Mode(NamedTuple):
    """How updates are executed."""

    compile: CompileMode
    graphs: GraphMode

    @property
    def name(self) -> str:
        """Words for the mode, empty for eager execution."""
        words = {"compiled": self.compile != "off", "captured": self.graphs == "on"}
        return " ".join(word for word, holds in words.items() if holds)


def build(agent_class: type[Agent], device: torch.device, images: bool) -> Agent:
    """Return an agent of vectors or images, with two hidden layers and default settings."""
    torch.manual_seed(0)
    if images:
        return build_image_agent(agent_class, device)
    see, act = specs(1, kind=kind_of(agent_class), device=device)
    return build_agent(agent_class, see, act, hidden_sizes=HIDDEN, batch_size=BATCH)


def end(agent: Agent, execution: Execution) -> tuple[Tensor, Tensor]:
    """Return all parameters of an agent, and those after 50 gradient steps."""
    steps = [
        gradient_step(agent, random_batch(agent, agent.batch_size), execution) for _ in range(5)
    ]
    start = nn.utils.parameters_to_vector(agent.parameters()).detach().clone()
    torch.manual_seed(1)
    for step in range(AGREEMENT_STEPS):
        steps[step % len(steps)]()
    return start, nn.utils.parameters_to_vector(agent.parameters()).detach()


def deviation(agent_class: type[Agent], device: torch.device, images: bool, mode: Mode) -> float:
    """Return the distance between the parameters that eager updates and those of a mode reach.

    Returns:
        Norm of the difference divided by the norm of the change since the beginning.
    """
    torch._dynamo.reset()  # the same loss may be compiled with random numbers of the compiler
    options = importlib.import_module("torch._inductor.config")
    with options.patch(fallback_random=True):  # the random numbers of eager execution
        start, eager = end(build(agent_class, device, images), Execution(device))
        _, other = end(build(agent_class, device, images), Execution(device, "fp32", *mode))
    return float((other - eager).norm() / (eager - start).norm())


def measure(
    *,
    device: str = "auto",
    agent: str = "all",
    compile: bool = True,
    images: bool = False,
    rounds: Count = 9,
) -> Figures:
    """Measure agents in every precision of the device and print the medians.

    Args:
        device: compute device: auto, cpu, cuda, ... (auto).
        agent: name of one agent, or all (all).
        compile: also compile the updates, which takes up to a minute each (true).
        images: learn from images of 48 x 48 pixels instead of vectors (false).
        rounds: number of rounds of 10 gradient steps for each execution (9).
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    agents = {name: each for name, each in learning_agents().items() if agent in (name, "all")}
    if not agents:
        raise ConfigurationError(f"agent={agent}: one of {', '.join(learning_agents())}, or all")
    torch.set_num_threads(1)
    keep_freed_memory()
    resolved = resolve_device(device)
    accelerator = accelerator_of(resolved)
    print_machine()
    batch_size, width = (IMAGE_BATCH, IMAGE_HIDDEN[0]) if images else (BATCH, WIDTH)
    size = f" of images of {IMAGE_SIZE} x {IMAGE_SIZE}" if images else ""
    print(
        f"gradient steps/s on {describe_device(resolved)}: {batch_size} transitions{size}, 2 "
        f"hidden layers of {width}\n"
    )
    is_cpu = accelerator.kind == "cpu"
    clock = time.process_time if is_cpu else time.perf_counter
    skipped = ("fp16",) if is_cpu else ()  # few CPUs have instructions for it
    precisions = [name for name in precisions_of(resolved) if name not in skipped]
    compiles = compile and accelerator.compile
    compilers: tuple[CompileMode, ...] = ("off", "default") if compiles else ("off",)
    captures: tuple[GraphMode, ...] = ("off", "on") if accelerator.graphs else ("off",)
    modes = [Mode(c, g) for g in captures for c in compilers]
    names = {f"{p} {m.name}".strip(): (p, *m) for m in modes for p in precisions}
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for learned, agent_class in agents.items():
        sides = {}
        for name, options in names.items():
            learner = build(agent_class, resolved, images)
            batch = random_batch(learner, batch_size)
            step = gradient_step(learner, batch, Execution(resolved, *options))
            sides[name] = timed(times(step), STEPS, device=resolved, clock=clock)
        samples = take_turns(sides, rounds)
        rates = {name: samples.rate(name) for name in names}
        best = max(rates.values()) / rates["fp32"]
        rows.append([learned, *(f"{rate:.1f}" for rate in rates.values()), f"{best:.2f}"])
        for name, rate in rates.items():
            figures[f"{learned}_{name.replace(' ', '_')}"] = round(rate, 1)
    print_table(["agent", *names, "best / fp32"], rows)
    if others := modes[1:]:
        print(
            f"difference to eager execution after {AGREEMENT_STEPS} gradient steps, as a share "
            "of the change of the parameters, fp32\n"
        )
        rows = []
        for learned, agent_class in agents.items():
            shares = {mode.name: deviation(agent_class, resolved, images, mode) for mode in others}
            rows.append([learned, *(f"{share:.1e}" for share in shares.values())])
            for name, share in shares.items():
                figures[f"{learned}_{name.replace(' ', '_')}_deviation"] = share
        print_table(["agent", *(mode.name for mode in others)], rows)
    return figures


if __name__ == "__main__":
    main(measure)
