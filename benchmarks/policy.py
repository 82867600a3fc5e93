"""Measure the speed-up of batched acting over acting for one observation at a time.

`PolicyWrapper` is compared with a common loop: each observation goes to the host as a NumPy array
and back to the device as a batch of one; the action of the network goes to the host, where noise or
epsilon is applied. Both use the same network and observations and are measured in turns.

    python -m benchmarks.policy
"""

import random
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from agents.base import Agent
from agents.dqn import DQN
from agents.sac import SAC
from benchmarks.fixture import (
    ACTION_DIM,
    NUM_ACTIONS,
    OBSERVATION_DIM,
    Seconds,
    build_agent,
    kind_of,
    specs,
)
from benchmarks.measuring import take_turns, timed, times
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.device import describe_device, resolve_device

BATCHES = (1, 64, 1_024, 16_384)
EPSILON, NOISE = 0.1, 0.1
_OBSERVATIONS = 64  # minimum number in one measurement, which repeats smaller batches

Act = Callable[[Tensor], Tensor]


def batched(agent: Agent) -> Act:
    """Return a function that acts by one call of the agent's policy."""

    def act(observation: Tensor) -> Tensor:
        seen = TensorDict({"observation": observation}, observation.shape[:1])
        action: Tensor = agent.policy(seen)["action"]
        return action

    return act


def one_by_one(agent: Agent) -> Act:
    """Return a function that acts by a loop over the observations."""
    device = agent.device
    generator = np.random.default_rng(0)

    def greedy(observation: Tensor) -> Tensor:
        state = torch.from_numpy(observation.cpu().numpy()).unsqueeze(0).to(device)
        # A plain dictionary spares the loop the cost of a TensorDict per observation.
        seen = cast(TensorDictBase, {"observation": state})
        return agent.policy.actor.act(seen, deterministic=True)

    def continuous(observation: Tensor) -> object:
        action = greedy(observation).squeeze(0).cpu().numpy()
        noise = NOISE * generator.standard_normal(ACTION_DIM, dtype=np.float32)
        return np.clip(action + noise, -1.0, 1.0)

    def discrete(observation: Tensor) -> object:
        if random.random() < EPSILON:
            return random.randrange(NUM_ACTIONS)
        return greedy(observation).item()

    explore = continuous if agent.policy.is_continuous else discrete

    def act(observation: Tensor) -> Tensor:
        return torch.from_numpy(np.array([explore(row) for row in observation])).to(device)

    return act


def on_host(act: Act, observation: Tensor) -> Tensor:
    """Act, and copy the actions to the host."""
    return act(observation).cpu()


@torch.no_grad()
def compare(*, device: str = "auto", seconds: Seconds = 3.0) -> Figures:
    """Measure batched and single acting at every batch size and print the medians.

    Args:
        device: compute device: auto, cpu, cuda, ... (auto).
        seconds: duration of the measurements of each agent and batch size in seconds, above 0 (3).
    """
    resolved = resolve_device(device)
    print_machine()
    print(f"acting on {describe_device(resolved)}\n")
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for name, agent_class in (("sac", SAC), ("dqn", DQN)):
        agent = build_agent(agent_class, *specs(1, kind=kind_of(agent_class), device=resolved))
        ways = {"wrapper": batched(agent), "loop": one_by_one(agent)}
        for batch in BATCHES:
            observation = torch.randn(batch, OBSERVATION_DIM, device=resolved)
            calls = max(1, _OBSERVATIONS // batch)
            sides = {
                way: timed(times(partial(on_host, act, observation)), calls, per_unit=batch)
                for way, act in ways.items()
            }
            samples = take_turns(sides, seconds=seconds)
            wrapper, loop = (1e6 / samples.rate(way) for way in ways)
            gain = loop / wrapper
            rows.append([name, f"{batch:,}", f"{loop:.2f}", f"{wrapper:.3f}", f"{gain:.1f}"])
            figures[f"{name}_{batch}_loop_us"] = round(loop, 2)
            figures[f"{name}_{batch}_wrapper_us"] = round(wrapper, 4)
            figures[f"{name}_{batch}_times_faster"] = round(gain, 1)
    print_table(["agent", "batch", "loop, us/row", "PolicyWrapper, us/row", "times faster"], rows)
    return figures


if __name__ == "__main__":
    main(compare)
