"""Environments of a run: their capabilities, and which agents can act and learn in them."""

import torch
from torchrl.envs import EnvBase

from agents.base import Agent, OnPolicyAgent
from agents.untrained import UntrainedAgent
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_kind, action_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents
from trainers.components.component import Component


def capabilities_of(env: Component, device: torch.device) -> Capabilities:
    """Return the capabilities of the environment of a run before it is built."""
    if not issubclass(env.target, Environment):
        return Capabilities()
    return env.target.capabilities_of(env.arguments(), device)


def pair(env: EnvBase, agent: type[Agent] | type[UntrainedAgent]) -> Environment:
    """Return an environment whose actions an agent class can produce.

    A discrete agent can act in a continuous environment that declares a table of discrete actions:
    the returned environment then applies the table.

    Raises:
        ConfigurationError: the agent cannot act in this environment; the message lists the agents
            that learn and can.
    """
    env = as_environment(env)
    kind = action_kind(action_spec(env))
    if kind in agent.actions:
        return env
    if "discrete" in agent.actions and env.capabilities.discrete_actions is not None:
        return with_action_table(env)
    able = [name for name, other in learning_agents().items() if kind in other.actions]
    raise ConfigurationError(
        f"agent={agent.__name__}: it does not produce the {kind} actions of this environment; "
        f"agents that do: {', '.join(able)}"
    )


def overlap_of(wanted: bool | None, agent: type, env_name: str, *, env_can: bool) -> bool:
    """Return whether an agent learns while its environment simulates.

    `wanted` is the setting `trainer.overlap`, with None for every pair that can, and `env_can` is
    `can_overlap` of the environment.
    """
    if issubclass(agent, OnPolicyAgent):
        obstacle = f"{agent.__name__} learns on-policy and acts with its newest policy only"
    elif not env_can:
        obstacle = f"{env_name} with these settings cannot simulate while the agent learns"
    else:
        return wanted is not False
    if wanted:
        raise ConfigurationError(
            f"trainer.overlap=true: {obstacle}; trainer.overlap=null overlaps where possible"
        )
    return False
