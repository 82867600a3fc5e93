"""Trained policies: what of a checkpoint is needed to act, and agents made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor
from torchrl.envs import EnvBase

from agents.base import Agent
from agents.modules.training_state import POLICY, load_networks
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.environments.specs import action_spec, observation_spec
from trainers.components import read_component
from trainers.identity import check_identity
from trainers.layout import load_checkpoint
from trainers.pairing import pair
from trainers.settings import PROVIDED

# What a policy file keeps of a checkpoint, besides the policy.
_KEPT = ("layout", "agent_name", "spaces", "config", "frames", "seconds")


def save_policy(checkpoint: Path, path: Path) -> None:
    """Write a file from which the agent of a checkpoint can act, but not learn on.

    It lacks critics, targets, optimizers and the world's state, and is small enough to be shipped;
    `mode=eval` and `mode=demo` take it like a checkpoint.

    Args:
        checkpoint: the file of a checkpoint.
        path: `*.safetensors`; its folder is made.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    state = load_checkpoint(checkpoint)
    policy = _policy_of(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state(path, {**{name: state[name] for name in _KEPT}, "policy": policy})


def load_policy(path: Path, agent: Agent) -> None:
    """Let an agent act as that of a checkpoint, or of a policy file.

    Args:
        path: of either.
        agent: of the same class, settings and spaces.

    Raises:
        ConfigurationError: the file cannot be read or belongs to another agent or world.
    """
    state = load_checkpoint(path)
    check_identity(state, agent, path)
    load_networks(agent.policy, _policy_of(state))


def trained_agent(path: Path, env: EnvBase, device: torch.device) -> tuple[Agent, EnvBase]:
    """Return the agent of a checkpoint or a policy file, and the world as it can act in it.

    Args:
        path: of either.
        env: a world that shows what the agent was trained to see, any number at a time.
        device: where the agent shall live.

    Returns:
        The agent, and the world, with the action table that an agent with discrete actions needs
        in a continuous world.

    Raises:
        ConfigurationError: the file cannot be read or belongs to another world.
    """
    resolved: Any = OmegaConf.create(load_checkpoint(path)["config"])
    config: Any = OmegaConf.to_container(resolved, resolve=True)
    component = read_component("agent", config["agent"], PROVIDED["agent"])
    world = pair(env, component.target)
    seen = observation_spec(world, config.get("observation_keys"))
    agent: Agent = component.build(seen, action_spec(world), device)
    load_policy(path, agent)
    return agent, world


def _policy_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the networks that act, out of the state of a policy file or of a checkpoint."""
    if "policy" in state:
        return dict(state["policy"])
    networks = state["agent"]["networks"]
    return {
        name.removeprefix(POLICY): tensor
        for name, tensor in networks.items()
        if name.startswith(POLICY)
    }
