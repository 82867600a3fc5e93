"""Policy files, and policies that act from a file alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray
from omegaconf import OmegaConf
from torch import Tensor, nn

from agents.base import Agent
from agents.modules.training_state import POLICY, load_networks
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.checkpoints.state_file import save_state
from trainers.components.component import read_component
from trainers.runs.identity import check_identity
from trainers.runs.layout import load_checkpoint

# Entries of a checkpoint that a policy file keeps, besides the policy.
KEPT = ("layout", "agent_name", "interface", "config", "frames", "seconds")


class TrainedPolicy(nn.Module):
    """A greedy policy for use outside of a simulator: see `load_policy`.

    Args:
        agent: agent whose policy acts.
        interface: what the policy reads and returns.

    Attributes:
        interface: shapes, dtypes, bounds and units of observations and actions, frame stacks, time
            of a step, and action table.
        policy: the policy as a TensorDict module, for `evaluate`, `film` or a collector; with an
            action table, its actions are row numbers.
    """

    table: Tensor | None

    def __init__(self, agent: Agent, interface: PolicyInterface) -> None:
        super().__init__()
        self.interface = interface
        self.policy = agent.policy.eval()
        table = interface.action_table
        self.register_buffer("table", None if table is None else table.to(agent.device))

    def forward(self, observation: Observations) -> Tensor:
        """Return the actions for observations `[*B, ...]`, tensors in and out.

        Args:
            observation: tensors by key, in the dtypes of `interface`, on the policy's device.

        Returns:
            Actions in the units of the environment: `[*B, action_dim]`, or indices `[*B]` int64.
        """
        action = self.policy.to_bounds(self.policy.actor.act(observation, deterministic=True))
        return action if self.table is None else self.table[action]

    @torch.no_grad()
    def predict(self, observation: Mapping[Any, Any] | ArrayLike | Tensor) -> NDArray[Any] | Tensor:
        """Return the greedy actions for one observation or a batch.

        Args:
            observation: NumPy arrays or tensors by name, each `[*B, ...]` as the environment gives
                them, a stack of frames included; or the array alone, of a policy that reads one
                observation. Nested names are joined by dots.

        Returns:
            Actions in the units of the environment, `[*B, action_dim]` or indices `[*B]`: a tensor
            on the policy's device for tensors, otherwise a NumPy array.

        Raises:
            ConfigurationError: an observation is missing, unknown, or has another shape or dtype.
        """
        device = self.policy.frames.device
        action: Tensor = self(self.interface.read(observation, device))
        given = observation.values() if isinstance(observation, Mapping) else [observation]
        if any(isinstance(value, Tensor) for value in given):
            return action
        return action.cpu().numpy()


def load_policy(path: Path | str, device: torch.device | str = "cpu") -> TrainedPolicy:
    """Load a policy to act with, from a checkpoint or a policy file alone.

    No environment is built. The module of the agent's class is imported.

    Args:
        path: path of a checkpoint or policy file.
        device: device of the policy.

    Raises:
        ConfigurationError: the file cannot be read, or belongs to another version of its agent.
    """
    path = Path(path)
    state = load_checkpoint(path)
    interface = PolicyInterface.from_state(state["interface"])
    resolved: Any = OmegaConf.create(state["config"])
    section: Any = OmegaConf.to_container(resolved, resolve=True)
    component = read_component("agent", section["agent"])
    place = torch.device(device)
    agent: Agent = component.build(
        interface.observation_spec.to(place), interface.action_spec.to(place), place
    )
    _restore(state, agent, path)
    return TrainedPolicy(agent, interface)


def restore_policy(path: Path, agent: Agent, state: Mapping[str, Any] | None = None) -> None:
    """Load the policy of a checkpoint or a policy file into an agent.

    Args:
        path: path of a checkpoint or policy file.
        agent: agent of the same class, network settings, observations and actions.
        state: content of the file if it has been read already, see `load_checkpoint`.

    Raises:
        ConfigurationError: the file cannot be read, or belongs to another agent or environment.
    """
    _restore(load_checkpoint(path) if state is None else state, agent, path)


def save_policy(checkpoint: Path, path: Path) -> None:
    """Write a policy file: the part of a checkpoint that acting needs.

    It lacks critics, target networks, optimizers and the environment's state, so it cannot resume
    training and is small enough to be shipped. `load_policy`, `mode=eval` and `mode=demo` accept it
    like a checkpoint.

    Args:
        checkpoint: path of a checkpoint file.
        path: path of the new file, `*.safetensors`; its folder is created.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    state = load_checkpoint(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state(path, {**{name: state[name] for name in KEPT}, "policy": _policy_of(state)})


def _restore(state: Mapping[str, Any], agent: Agent, path: Path) -> None:
    check_identity(state, agent, path)
    load_networks(agent.policy, _policy_of(state))


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
