"""Policy files: save the policy of a checkpoint, and load agents from policy files."""

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
from trainers.components.component import read_component
from trainers.components.pairing import pair
from trainers.runs.identity import check_identity
from trainers.runs.layout import load_checkpoint

# Entries of a checkpoint that a policy file keeps, besides the policy.
_KEPT = ("layout", "agent_name", "spaces", "config", "frames", "seconds")


def save_policy(checkpoint: Path, path: Path) -> None:
    """Write a policy file: the part of a checkpoint that acting needs.

    It lacks critics, target networks, optimizers and the environment's state, so it cannot resume
    training and is small enough to be shipped. `mode=eval` and `mode=demo` accept it like a
    checkpoint.

    Args:
        checkpoint: path of a checkpoint file.
        path: path of the new file, `*.safetensors`; its folder is created.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    state = load_checkpoint(checkpoint)
    policy = _policy_of(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state(path, {**{name: state[name] for name in _KEPT}, "policy": policy})


def load_policy(path: Path, agent: Agent) -> None:
    """Load the policy of a checkpoint or a policy file into an agent.

    Args:
        path: path of a checkpoint or policy file.
        agent: agent of the same class, network settings, observations and actions.

    Raises:
        ConfigurationError: the file cannot be read, or belongs to another agent or environment.
    """
    state = load_checkpoint(path)
    check_identity(state, agent, path)
    load_networks(agent.policy, _policy_of(state))


def trained_agent(path: Path, env: EnvBase, device: torch.device) -> tuple[Agent, EnvBase]:
    """Build the agent of a checkpoint or a policy file, ready to act.

    Args:
        path: path of a checkpoint or policy file.
        env: environment with the observations that the agent was trained on, of any batch size.
        device: device of the agent.

    Returns:
        The agent and its environment: `env`, with the action table that an agent with discrete
        actions needs in a continuous environment.

    Raises:
        ConfigurationError: the file cannot be read, or belongs to another environment.
    """
    resolved: Any = OmegaConf.create(load_checkpoint(path)["config"])
    config: Any = OmegaConf.to_container(resolved, resolve=True)
    component = read_component("agent", config["agent"])
    paired = pair(env, component.target)
    observed = observation_spec(paired, config.get("observation_keys"))
    agent: Agent = component.build(observed, action_spec(paired), device)
    load_policy(path, agent)
    return agent, paired


def _policy_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the policy networks in the state of a checkpoint or a policy file."""
    if "policy" in state:
        return dict(state["policy"])
    networks = state["agent"]["networks"]
    return {
        name.removeprefix(POLICY): tensor
        for name, tensor in networks.items()
        if name.startswith(POLICY)
    }
