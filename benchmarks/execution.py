"""Measure gradient steps per second of every agent in each precision: eager, compiled, captured.

All executions of an agent learn from the same batch and are measured in turns, round by round; the
figures are medians of the rounds. With one thread on a CPU the seconds are CPU time, which other
programs on the machine do not lengthen. Compilation takes up to a minute for each agent and
precision. Graphs are captured where the device has them, of eager and of compiled updates.

A second table says how far the parameters of a compiled or captured agent are from those of an
eager one after 50 gradient steps from the same random state on the same batches, as a share of how
far training has moved them.

    python -m benchmarks.execution
"""

from __future__ import annotations

import importlib
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from agents.base import Agent, OnPolicyAgent
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.execution import CompileMode, Execution, GraphMode
from torchrl_gpu.execution.precision import precisions_of
from trainers.components.choices import learning_agents

OBSERVATION_DIM, ACTION_DIM, NUM_ACTIONS = 21, 6, 13  # those of the environment fanuc
HORIZON = 8  # steps of a rollout; the batch is one rollout of many environments
WARM_UPS, STEPS = 5, 10  # gradient steps before the measurement, and in each round of it
AGREEMENT_STEPS = 50

Step = Callable[[], object]


class Mode(NamedTuple):
    """How updates are executed."""

    compile: CompileMode
    graphs: GraphMode

    @property
    def name(self) -> str:
        """Words for the mode, empty for eager execution."""
        words = {"compiled": self.compile != "off", "captured": self.graphs == "on"}
        return " ".join(word for word, holds in words.items() if holds)


EAGER = Mode("off", "off")


def build_agent(agent_class: type[Agent], width: int, batch: int, device: torch.device) -> Agent:
    """Return an agent with two hidden layers and otherwise default settings."""
    kind: ActionKind = "continuous" if "continuous" in agent_class.actions else "discrete"
    see = Composite(observation=Unbounded((1, OBSERVATION_DIM)), shape=(1,), device=device)
    act: TensorSpec = Categorical(NUM_ACTIONS, shape=(1,), dtype=torch.int64, device=device)
    if kind == "continuous":
        act = Bounded(-1.0, 1.0, (1, ACTION_DIM), device=device)
    settings = {"hidden_sizes": (width, width), "batch_size": batch}
    known = parameters_of(agent_class)
    constructor: Callable[..., Agent] = agent_class
    return constructor(see, act, device, **{k: v for k, v in settings.items() if k in known})


def build_batch(agent: Agent, rows: int) -> TensorDictBase:
    """Return `rows` random transitions, prepared if the agent is on-policy."""
    shape = (HORIZON, rows // HORIZON)
    action = torch.rand(*shape, ACTION_DIM) * 2.0 - 1.0
    if not agent.policy.is_continuous:
        action = torch.randint(NUM_ACTIONS, shape)
    no = torch.zeros(*shape, 1, dtype=torch.bool)
    rollout = TensorDict(
        {
            "observation": torch.randn(*shape, OBSERVATION_DIM),
            "action": action,
            "next": {
                "observation": torch.randn(*shape, OBSERVATION_DIM),
                "reward": torch.randn(*shape, 1),
                "terminated": no,
                "truncated": no,
            },
        },
        shape,
    ).to(agent.device)
    return (agent.prepare(rollout) if isinstance(agent, OnPolicyAgent) else rollout).reshape(-1)


def build_step(
    agent_class: type[Agent], execution: Execution, width: int, rows: int, device: torch.device
) -> Step:
    """Return a function that does one gradient step of a new agent, after its warm-up."""
    torch.manual_seed(0)
    agent = build_agent(agent_class, width, rows, device)
    batch = build_batch(agent, rows)

    def step() -> object:
        return execution.update(agent, batch)

    for _ in range(WARM_UPS):
        step()
    return step


def seconds_of(step: Step, device: torch.device, clock: Callable[[], float]) -> float:
    """Return the mean seconds of one gradient step."""
    accelerator = accelerator_of(device)
    accelerator.synchronize()
    start = clock()
    for _ in range(STEPS):
        step()
    accelerator.synchronize()
    return (clock() - start) / STEPS


def deviation(
    agent_class: type[Agent], mode: Mode, width: int, rows: int, device: torch.device
) -> float:
    """Return the distance between the parameters that eager updates and those of a mode lead to.

    Returns:
        Norm of the difference divided by the norm of the change since the beginning.
    """
    options = importlib.import_module("torch._inductor.config")
    torch._dynamo.reset()  # code of the same loss that draws numbers of its own may be there
    ends: list[Tensor] = []
    start = torch.empty(0)
    for each in (EAGER, mode):
        torch.manual_seed(0)
        agent = build_agent(agent_class, width, rows, device)
        batches = [build_batch(agent, rows) for _ in range(5)]
        start = nn.utils.parameters_to_vector(agent.parameters()).detach().clone()
        execution = Execution(device, compile=each.compile, graphs=each.graphs)
        torch.manual_seed(1)
        with options.patch(fallback_random=True):  # the random numbers of eager execution
            for step in range(AGREEMENT_STEPS):
                execution.update(agent, batches[step % len(batches)])
        ends.append(nn.utils.parameters_to_vector(agent.parameters()).detach())
    eager, other = ends
    return float((other - eager).norm() / (eager - start).norm())


def measure(
    *,
    device: str = "auto",
    batch: Annotated[int, Field(ge=8, multiple_of=8)] = 256,
    width: Annotated[int, Field(ge=1)] = 256,
    rounds: Annotated[int, Field(ge=1)] = 9,
    threads: Annotated[int, Field(ge=1)] = 1,
    compile: CompileMode = "default",
) -> int:
    """Measure every agent in every precision of the device and print the medians.

    Args:
        device: compute device: auto, cpu, cuda, ... (auto).
        batch: number of transitions per gradient step, a multiple of 8 (256).
        width: width of the two hidden layers (256).
        rounds: number of rounds of 10 gradient steps for each execution (9).
        threads: number of CPU threads of PyTorch, at least 1 (1).
        compile: compiler mode beside eager execution; off for eager execution alone (default).
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(threads)
    keep_freed_memory()
    resolved = resolve_device(device)
    print_machine()
    print(
        f"gradient steps/s on {describe_device(resolved)}: {batch} transitions, 2 hidden layers of "
        f"{width}\n"
    )
    is_cpu = accelerator_of(resolved).kind == "cpu"
    clock = time.process_time if is_cpu and threads == 1 else time.perf_counter
    skipped = ("fp16",) if is_cpu else ()  # few CPUs have instructions for it
    precisions = [name for name in precisions_of(resolved) if name not in skipped]
    has_compiler = compile != "off" and accelerator_of(resolved).compile
    compilers: tuple[CompileMode, ...] = ("off", compile) if has_compiler else ("off",)
    captures: tuple[GraphMode, ...] = ("off", "on") if accelerator_of(resolved).graphs else ("off",)
    modes = [Mode(c, g) for g in captures for c in compilers]
    names = [f"{p} {m.name}".strip() for m in modes for p in precisions]
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for agent_name, agent_class in sorted(learning_agents().items()):
        executions = [Execution(resolved, p, *m) for m in modes for p in precisions]
        steps = [build_step(agent_class, e, width, batch, resolved) for e in executions]
        turns = [[seconds_of(step, resolved, clock) for step in steps] for _ in range(rounds)]
        rates = [1.0 / statistics.median(times) for times in zip(*turns, strict=True)]
        rows.append([agent_name, *(f"{rate:.1f}" for rate in rates)])
        rows[-1].append(f"{max(rates) / rates[0]:.2f}")
        figures |= {
            f"{agent_name}_{name.replace(' ', '_')}": round(rate, 1)
            for name, rate in zip(names, rates, strict=True)
        }
    print_table(["agent", *names, "best / fp32"], rows)
    if len(modes) > 1:
        print(
            f"\ndifference to eager execution after {AGREEMENT_STEPS} gradient steps, as a share "
            "of the change of the parameters, fp32\n"
        )
        agreement: list[list[str]] = []
        for agent_name, agent_class in sorted(learning_agents().items()):
            shares = {
                m.name: deviation(agent_class, m, width, batch, resolved)
                for m in modes
                if m != EAGER
            }
            agreement.append([agent_name, *(f"{share:.1e}" for share in shares.values())])
            figures |= {
                f"{agent_name}_{name.replace(' ', '_')}_deviation": share
                for name, share in shares.items()
            }
        print_table(["agent", *shares], agreement)
    print()
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
