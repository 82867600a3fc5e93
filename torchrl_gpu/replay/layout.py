"""Shape and dtype of every tensor of a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.errors import ConfigurationError

Key = tuple[str, ...]
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


def replay_layout(
    capacity: int,
    observation_spec: Composite,
    action_spec: TensorSpec,
    num_envs: int,
    stacks: Mapping[Key, int],
) -> Layout:
    """Return shape and dtype of every tensor of a buffer: rows, steps and counters.

    A row of a stack of frames holds one frame.
    """
    steps = capacity // num_envs
    layout: Layout = {}
    for key, spec in leaves_of(observation_spec).items():
        shape = tuple(spec.shape[1:])
        if key in stacks:
            shape = (shape[0] // stacks[key], *shape[1:])
        layout[row_name(key)] = ((capacity, *shape), spec.dtype)
    if stacks:
        layout["steps.age"] = ((steps, num_envs), torch.int64)
    return layout | {
        "steps.slots": ((steps, num_envs, 2), torch.int64),
        "steps.action": ((steps, *action_spec.shape), action_spec.dtype),
        "steps.reward": ((steps, num_envs, 1), torch.float32),
        "steps.terminated": ((steps, num_envs, 1), torch.bool),
        "steps.truncated": ((steps, num_envs, 1), torch.bool),
        "steps.first_row": ((steps,), torch.int64),
        "steps.first_transition": ((steps,), torch.int64),
        "places": ((steps * num_envs + 1,), torch.int64),
        "next_transition": ((1,), torch.int64),
        "current_row": ((num_envs,), torch.int64),
        "oldest_steps": ((2,), torch.int64),
        "next_step": ((1,), torch.int64),
        "capacity": ((1,), torch.int64),
    }


def leaves_of(spec: Composite) -> dict[Key, TensorSpec]:
    """Return the leaves of a spec by key, with all keys as tuples."""
    items = spec.items(include_nested=True, leaves_only=True)
    return {(key,) if isinstance(key, str) else tuple(key): leaf for key, leaf in items}


def least_capacity(num_envs: int, stacks: Mapping[Key, int]) -> int:
    """Return the capacity below which no complete step is certain to be stored."""
    # A step writes at most 2 * num_envs rows, and a root refers to as many earlier steps as its
    # stack has frames before the newest one.
    return (2 * max(stacks.values(), default=1) + 1) * num_envs


def row_name(key: Key) -> str:
    """Return the name of the tensor with the rows of an observation."""
    return ".".join(("rows", *key))


def unchecked(tensors: Mapping[Key, Tensor], batch_size: torch.Size) -> TensorDict:
    """Return tensors `[*batch_size, ...]` of one device by nested key as one TensorDict.

    Shapes and devices are not checked: the checks take as long as all gathers of a sample.

    Args:
        tensors: tensors by key, at least one.
        batch_size: leading dimensions that all of them share.
    """
    entries: dict[str, Any] = {}
    nested: dict[str, dict[Key, Tensor]] = {}
    for (name, *inner), tensor in tensors.items():
        if inner:
            nested.setdefault(name, {})[tuple(inner)] = tensor
        else:
            entries[name] = tensor
    for name, children in nested.items():
        entries[name] = unchecked(children, batch_size)
    device = next(iter(tensors.values())).device
    return TensorDict._new_unsafe(entries, batch_size=batch_size, device=device)


def check_layout(
    capacity: int,
    observation_spec: Composite,
    action_spec: TensorSpec,
    num_envs: int,
    stacks: Mapping[Key, int],
) -> None:
    """Reject invalid arguments of a replay buffer.

    Raises:
        ConfigurationError: the capacity is too small for `num_envs`, there are no observations, a
            spec does not begin with `num_envs`, or an observation is no stack of as many frames as
            declared.
    """
    least = least_capacity(num_envs, stacks)
    if capacity < least:
        raise ConfigurationError(
            f"capacity={capacity}: a replay of {num_envs} environments needs at least {least}"
        )
    leaves = leaves_of(observation_spec)
    if not leaves:
        raise ConfigurationError("observation_spec: there is no observation to store")
    for key, spec in {**leaves, ("action",): action_spec}.items():
        if spec.shape[:1] != (num_envs,):
            raise ConfigurationError(
                f"the spec of {'.'.join(key)} has shape {list(spec.shape)}; "
                f"it must begin with num_envs={num_envs}"
            )
    for key, count in stacks.items():
        shape = leaves[key].shape[1:]
        if not shape or shape[0] % count:
            raise ConfigurationError(
                f"the observation {'.'.join(key)} of shape {list(shape)} is no stack of {count} "
                f"frames; its first dimension must be a multiple of {count}"
            )
