"""Layout of checkpoints and policy files, and their agent and spaces, checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.base import Agent
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError

LAYOUT = 6


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint or a policy file.

    Args:
        path: path of the file.

    Raises:
        ConfigurationError: the file cannot be read, see `load_state`, or has another layout.
    """
    state = load_state(path)
    if state.get("layout") != LAYOUT:
        raise ConfigurationError(
            f"checkpoint={path}: another version of this library wrote it, in layout "
            f"{state.get('layout')}; this version reads layout {LAYOUT}"
        )
    return state


def identity(agent: Agent, env: Environment) -> dict[str, Any]:
    """Return the class name of an agent, and what its policy reads and returns in an environment.

    Args:
        agent: agent that is saved.
        env: environment in which it acts.
    """
    interface = PolicyInterface.of(agent.observation_spec, agent.action_spec, env.capabilities)
    return {"agent_name": type(agent).__name__, "interface": interface.state_dict()}


def check_identity(state: Mapping[str, Any], agent: Agent, checkpoint: Path) -> None:
    """Refuse a checkpoint of another agent class or of other observations or actions.

    Raises:
        ConfigurationError: the checkpoint does not match the agent.
    """
    name = type(agent).__name__
    if state.get("agent_name") != name:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it contains the agent {state.get('agent_name')}, not {name}"
        )
    found = PolicyInterface.from_state(state["interface"]).shapes()
    expected = PolicyInterface(agent.observation_spec, agent.action_spec).shapes()
    # The order counts, too: the networks read the observations one after the other.
    if list(found.items()) != list(expected.items()):
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it belongs to another environment, with {found}; "
            f"this one has {expected}"
        )


def check_trainable(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Refuse to resume training from a policy file.

    Raises:
        ConfigurationError: the file is not the checkpoint of a run.
    """
    if "agent" not in state:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: a policy file cannot resume training; use a "
            "checkpoint of a run"
        )
