"""Environments of a run: their capabilities, and which agents can act and learn in them."""

import torch
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase

from agents.base import Agent, OnPolicyAgent
from agents.untrained import UntrainedAgent
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import Environment, base_of, name_of
from torchrl_gpu.environments.specs import (
    action_bounds,
    action_kind,
    action_spec,
    name_of_key,
    observation_spec,
)
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents
from trainers.components.component import Component


def capabilities_of(env: Component, device: torch.device) -> Capabilities:
    """Return the capabilities of the environment of a run before it is built."""
    if not issubclass(env.target, Environment):
        return Capabilities(can_render=None)  # by its observation `pixels`
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


def check_fit(agent: Agent, env: EnvBase) -> None:
    """Refuse an environment with other observations or actions than an agent was built for."""
    _compare(agent, env, "env", slice(None))


def check_evaluation(agent: Agent, env: EnvBase, evaluation_env: EnvBase) -> None:
    """Refuse an environment that cannot evaluate an agent; its number of environments is free."""
    if base_of(evaluation_env) is base_of(env):
        raise ConfigurationError(
            "evaluation_env: it is the training environment, whose episodes an evaluation would "
            "end; build another one, or an Evaluator"
        )
    _compare(agent, evaluation_env, "evaluation_env", 0)


def _compare(agent: Agent, env: EnvBase, setting: str, rows: int | slice) -> None:
    keys = list(agent.observation_spec.keys(True, True))
    own, seen = agent.observation_spec[rows], observation_spec(env, keys)[rows]
    texts = {name_of_key(key): (_shape_of(own[key]), _shape_of(seen[key])) for key in keys}
    texts["action"] = _range_of(agent.action_spec[rows]), _range_of(action_spec(env)[rows])
    for name, (expected, found) in texts.items():
        if found != expected:
            raise ConfigurationError(
                f"{setting}: {name} of {name_of(env)} has {found}, the agent was built for "
                f"{expected}; build it by observation_spec(env) and action_spec(env)"
            )


def _shape_of(spec: TensorSpec) -> str:
    return f"shape {list(spec.shape)} and {spec.dtype}"


def _range_of(action: TensorSpec) -> str:
    if action_kind(action) == "discrete":
        return f"{_shape_of(action)}, {action.space.n} choices"
    low, high = (bound.tolist() for bound in action_bounds(action))
    return f"{_shape_of(action)}, from {low} to {high}"


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
