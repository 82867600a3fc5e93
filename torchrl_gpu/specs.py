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


def observation_spec(env: EnvBase) -> Composite:
    """Return the specs of what an agent observes in a world: all observations but the outcome."""
    spec: Composite = env.observation_spec.clone()
    for key in OUTCOME_KEYS:
        if key in spec.keys():  # noqa: SIM118  (a Composite iterates over its batch)
            del spec[key]
    return spec


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
