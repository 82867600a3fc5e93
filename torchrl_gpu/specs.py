"""What of a world's specs concerns an agent."""

from __future__ import annotations

from typing import Literal

from torchrl.data import Bounded, Categorical, Composite, OneHot, TensorSpec
from torchrl.envs import EnvBase

from torchrl_gpu.errors import ConfigurationError

ActionKind = Literal["continuous", "discrete"]

# Told by a world about a transition, not seen by the agent: whether its task is solved, and whether
# the step from here is a transition at all (a robot out of the game does not move any more).
OUTCOME_KEYS = ("success", "active")


def group_of(env: EnvBase) -> str | None:
    """Return the name of the group of robots that act in a world; None where itself acts.

    Raises:
        ConfigurationError: more than one kind of action is asked for in a step.
    """
    keys = env.action_keys
    if len(keys) != 1:
        names = ", ".join(key if isinstance(key, str) else ".".join(key) for key in keys)
        raise ConfigurationError(f"env: one agent takes one action, this world asks for {names}")
    return None if isinstance(keys[0], str) else keys[0][0]


def observation_spec(env: EnvBase) -> Composite:
    """Return the specs of what an agent observes in a world: all observations but the outcome.

    The batch size is that of the world; of a world with a group of robots, `[worlds * robots]`.
    """
    group = group_of(env)
    spec = env.observation_spec.clone() if group is None else env.observation_spec[group].clone()
    for key in OUTCOME_KEYS:
        if key in spec.keys():  # noqa: SIM118  (a Composite iterates over its batch)
            del spec[key]
    return spec if group is None else spec.flatten(0, 1)


def action_spec(env: EnvBase) -> TensorSpec:
    """Return the spec of the action that an agent takes in a world, batched as observations are."""
    spec: TensorSpec = env.full_action_spec[env.action_keys[0]]
    return spec if group_of(env) is None else spec.flatten(0, 1)


def action_kind(action_spec: TensorSpec) -> ActionKind:
    """Return the kind of action that a spec describes.

    Raises:
        ConfigurationError: it is neither bounded and continuous nor a number out of `n`.
    """
    if isinstance(action_spec, Bounded) and action_spec.dtype.is_floating_point:
        return "continuous"
    if isinstance(action_spec, Categorical) and not isinstance(action_spec, OneHot):
        return "discrete"
    hint = "; build the world with categorical_action_encoding=True" * isinstance(
        action_spec, OneHot
    )
    raise ConfigurationError(
        f"action_spec: {type(action_spec).__name__} is neither Bounded with floating-point values "
        f"nor Categorical{hint}"
    )
