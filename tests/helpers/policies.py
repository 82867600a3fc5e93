"""Policies that act from a file."""

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import Binary, Bounded, Composite, Unbounded

from agents.base import Agent
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.environments.capabilities import Capabilities
from trainers import TrainedPolicy, load_policy
from trainers.components.component import record
from trainers.evaluation.evaluation import Evaluation
from trainers.exporting.contract import Contract
from trainers.exporting.writing import export_policy
from trainers.runs.policy_files import LAYOUT

# A vector under a nested key, a set with its mask, and a stack of two images.
MANY = Composite(
    robot=Composite(speed=Unbounded((1, 3)), shape=(1,)),
    objects=Unbounded((1, 4, 2)),
    objects_mask=Binary(4, (1, 4), dtype=torch.bool),
    pixels=Bounded(0, 255, (1, 2, 16, 16), dtype=torch.uint8),
    shape=(1,),
)

RESULT = Evaluation.of(4, {"episode/return": 1.5, "episode/length": 8.0, "episode/success": 0.5})


def saved(agent: Agent, folder: Path, capabilities: Capabilities | None = None) -> TrainedPolicy:
    """Return the policy of an agent after a visit to a file."""
    capabilities = capabilities or Capabilities()
    interface = PolicyInterface.of(agent.observation_spec, agent.action_spec, capabilities)
    path = folder / "policy.safetensors"
    save_state(
        path,
        {
            "layout": LAYOUT,
            "agent_name": type(agent).__name__,
            "interface": interface.state_dict(),
            "config": record(agent=agent),
            "policy": agent.policy.state_dict(),
        },
    )
    return load_policy(path)


def exported(
    policy: TrainedPolicy, folder: Path, rows: int = 70, **page: Any
) -> tuple[Contract, TensorDictBase]:
    """Export a policy into `folder / "export"`; return its contract, and the rows that check it."""
    spec = policy.interface.observation_spec
    drawn = torch.cat([spec.rand() for _ in range(rows)])
    contract = export_policy(
        policy,
        folder / "export",
        [drawn[key] for key in spec.keys(True, True)],
        agent="SAC",
        frames=7,
        evaluation=RESULT,
        config={},
        **page,
    )
    return contract, drawn


def random_weights(agent: Agent, scale: float = 1.0) -> None:
    """Draw weights so large that actions differ from observation to observation."""
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=scale)
