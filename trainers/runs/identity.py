"""Identity of a checkpoint: its agent and spaces, checked before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrl.data import Composite

from agents.base import Agent
from torchrl_gpu.errors import ConfigurationError


def identity(agent: Agent) -> dict[str, Any]:
    """Return the class name of the agent, and shape and dtype of each observation and action."""
    spaces = Composite({"observation": agent.observation_spec, "action": agent.action_spec})
    return {
        "agent_name": type(agent).__name__,
        "spaces": {
            ".".join(key) if isinstance(key, tuple) else key: _describe(agent, spaces, key)
            for key in spaces.keys(include_nested=True, leaves_only=True)
        },
    }


def check_identity(state: Mapping[str, Any], agent: Agent, checkpoint: Path) -> None:
    """Refuse a checkpoint of another agent class or of other observations or actions.

    Raises:
        ConfigurationError: the checkpoint does not match the agent.
    """
    expected = identity(agent)
    if state.get("agent_name") != expected["agent_name"]:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it holds the agent {state.get('agent_name')}, "
            f"not {expected['agent_name']}"
        )
    if state["spaces"] != expected["spaces"]:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it belongs to another environment, with {state['spaces']}; "
            f"this one has {expected['spaces']}"
        )


def check_trainable(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Refuse to resume training from a policy file.

    Raises:
        ConfigurationError: the file is not the checkpoint of a run.
    """
    if "agent" not in state:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it holds a policy alone, to evaluate or film; "
            "to resume training, name a checkpoint of a run"
        )


def _describe(agent: Agent, spaces: Composite, key: Any) -> str:
    spec = spaces[key]
    shape = spec.shape[len(agent.observation_spec.shape) :]
    return f"{list(shape)} {str(spec.dtype).removeprefix('torch.')}"
