"""Policies that act from a file."""

from pathlib import Path
from typing import Any

import torch
from torchrl.data import Binary, Bounded, Composite, Unbounded

from agents.base import Agent
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.environments.capabilities import Capabilities
from trainers import TrainedPolicy, load_policy
from trainers.runs.policy_files import LAYOUT

# A vector under a nested key, a set with its mask, and a stack of two images.
MANY = Composite(
    robot=Composite(speed=Unbounded((1, 3)), shape=(1,)),
    objects=Unbounded((1, 4, 2)),
    objects_mask=Binary(4, (1, 4), dtype=torch.bool),
    pixels=Bounded(0, 255, (1, 2, 16, 16), dtype=torch.uint8),
    shape=(1,),
)


def saved(agent: Agent, folder: Path, capabilities: Capabilities, **settings: Any) -> TrainedPolicy:
    """Return the policy of an agent after a visit to a file."""
    interface = PolicyInterface.of(agent.observation_spec, agent.action_spec, capabilities)
    path = folder / "policy.safetensors"
    agent_class = type(agent)
    section = {"_target_": f"{agent_class.__module__}.{agent_class.__qualname__}", **settings}
    save_state(
        path,
        {
            "layout": LAYOUT,
            "agent_name": agent_class.__name__,
            "interface": interface.state_dict(),
            "config": {"agent": section},
            "policy": agent.policy.state_dict(),
        },
    )
    return load_policy(path)


def random_weights(agent: Agent, scale: float = 1.0) -> None:
    """Draw weights so large that actions differ from observation to observation."""
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=scale)
