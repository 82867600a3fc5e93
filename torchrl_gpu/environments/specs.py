"""Specs of the observations and actions of an agent in an environment."""

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, MultiCategorical, MultiOneHot, TensorSpec
from torchrl.envs import EnvBase

from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import group_of, mask_of
from torchrl_gpu.environments.readers import is_choice
from torchrl_gpu.errors import ConfigurationError

ActionKind = Literal["continuous", "discrete"]


def observation_spec(
    env: EnvBase, observation_keys: Sequence[NestedKey] | None = None
) -> Composite:
    """Return the specs of the observations that an agent reads in an environment.

    Args:
        env: any TorchRL environment, see `torchrl_gpu.environments.adapter.as_environment`.
        observation_keys: keys of the observations to read; nested keys as tuples or joined by dots.
            A set includes its mask. In an environment with a group of robots, keys in the group.
            None for all observations except the environment's `outcome_keys`.

    Returns:
        Specs with batch size `[num_envs]`; with a group of robots, `[num_envs * robots]`.

    Raises:
        ConfigurationError: an observation does not exist; the message lists those that do.
    """
    env = as_environment(env)
    group = group_of(env)
    spec = env.observation_spec.clone() if group is None else env.observation_spec[group].clone()
    leaves: dict[str, NestedKey] = {
        name_of_key(key): key for key in spec.keys(include_nested=True, leaves_only=True)
    }
    if isinstance(observation_keys, str):
        raise ConfigurationError(
            f"observation_keys={observation_keys}: input should be a list; write "
            f"[{observation_keys!r}]"
        )
    outcomes = {name_of_key(key) for key in env.capabilities.outcome_keys}
    offered = [name for name in leaves if name not in outcomes]
    if observation_keys is None:
        seen = set(offered)
    else:
        seen = {name_of_key(key) for key in observation_keys}
        unknown = ", ".join(sorted(seen - leaves.keys()))
        if unknown or not seen:
            raise ConfigurationError(
                f"observation_keys: there is no observation {unknown or 'chosen'}; "
                f"this environment has: {', '.join(offered)}"
            )
        seen |= {name_of_key(mask_of(leaves[name])) for name in seen} & leaves.keys()
    for name in leaves.keys() - seen:
        del spec[leaves[name]]
    for name, entry in list(spec.items()):
        if isinstance(entry, Composite) and not list(entry.keys(True, True)):
            del spec[name]
    return spec if group is None else spec.flatten(0, 1)


def action_spec(env: EnvBase) -> TensorSpec:
    """Return the spec of an agent's action, with the batch size of its observations."""
    env = as_environment(env)
    group = group_of(env)
    spec: TensorSpec = env.full_action_spec[env.action_keys[0]]
    return spec if group is None else spec.flatten(0, 1)


def name_of_key(key: NestedKey) -> str:
    """Return a key as one word: the parts of a nested key joined by dots."""
    return key if isinstance(key, str) else ".".join(key)


def action_kind(action_spec: TensorSpec) -> ActionKind:
    """Return the kind of action that a spec describes.

    Raises:
        ConfigurationError: the spec is neither Bounded with floating-point values nor Categorical.
    """
    if isinstance(action_spec, Bounded) and action_spec.dtype.is_floating_point:
        return "continuous"
    if is_choice(action_spec):
        return "discrete"
    hint = ""
    if isinstance(action_spec, MultiCategorical | MultiOneHot | Binary):
        hint = "; of a Gymnasium environment, env=gym offers all combinations as one choice"
    raise ConfigurationError(
        f"action_spec: {type(action_spec).__name__} is neither Bounded with floating-point values "
        f"nor Categorical{hint}"
    )


def action_bounds(action_spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """Return the lower and upper bounds `[action_dim]` of a continuous action `[*B, action_dim]`.

    The bounds are those of the first environment: every environment of a batch has the same ones.

    Raises:
        ConfigurationError: a bound is not finite, or a lower bound is above the upper one.
    """
    dimension = action_spec.shape[-1]
    space = action_spec.space
    low, high = (bound.reshape(-1, dimension)[0] for bound in (space.low, space.high))
    for number, (lowest, highest) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        # Policies compute in float32.
        if not (lowest <= highest and highest - lowest <= torch.finfo(torch.float32).max):
            raise ConfigurationError(
                f"action_spec: component {number} of the action ranges from {lowest:g} to "
                f"{highest:g}; it needs finite bounds, the lower one first"
            )
    return low, high
