"""Every agent there is, small and quick to learn: what is in configs/agent is tested."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.envs import EnvBase

from agents.base import Agent
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.specs import action_kind, observation_spec
from trainers.pairing import pair
from trainers.registry import choices_of, class_of

AGENTS = choices_of("agent")
CPU = torch.device("cpu")

# For tasks without a future; each agent takes of it what its constructor knows.
QUICK: dict[str, Any] = {
    "hidden_sizes": [32, 32],
    "gamma": 0.0,
    "n_step": 1,
    "learning_rate": 3e-3,
    "initial_temperature": 0.05,
    "noise_frames": 2000,
    "epsilon_frames": 2000,
    "value_min": -8.0,
    "value_max": 2.0,
    "batch_size": 64,
    "utd_ratio": 0.125,
    "rollout_length": 16,
    "epochs": 4,
}


def build(name: str, world: EnvBase, device: torch.device = CPU, **settings: Any) -> Agent:
    """Build an agent for a world that it can act in, without the settings that it does not have."""
    kind = class_of("agent", name)
    fitting = {k: v for k, v in {**QUICK, **settings}.items() if k in parameters_of(kind)}
    spec = observation_spec(world).to(device)
    agent: Agent = kind(spec, world.action_spec.to(device), device, **fitting)
    return agent


def paired(name: str, *worlds: EnvBase) -> EnvBase:
    """Return the first of some worlds whose actions an agent produces."""
    kind: Any = class_of("agent", name)
    for world in worlds:
        if action_kind(world.action_spec) in kind.actions:
            return world
    return pair(worlds[0], kind)
