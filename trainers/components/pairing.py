"""Compatibility of agents and environments: kinds of actions."""

from __future__ import annotations

from torchrl.envs import EnvBase

from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_kind, action_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents


def pair(env: EnvBase, agent: type[Agent] | type[UntrainedAgent]) -> Environment:
    """Return an environment whose actions an agent class can produce.

    A discrete agent can act in a continuous environment that declares a table of discrete actions:
    the returned environment then applies the table.

    Args:
        env: environment to act in.
        agent: class of the agent.

    Raises:
        ConfigurationError: the agent cannot act in this environment; the message lists the agents
            that learn and can.
    """
    env = as_environment(env)
    kind = action_kind(action_spec(env))
    if kind in agent.actions:
        return env
    if "discrete" in agent.actions and env.discrete_actions is not None:
        return with_action_table(env)
    able = [name for name, other in learning_agents().items() if kind in other.actions]
    raise ConfigurationError(
        f"agent={agent.__name__}: it does not produce the {kind} actions of this environment; "
        f"agents that do: {', '.join(able)}"
    )
