"""Names, shapes and dtypes of the tensors of a replay buffer."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.memory import named
from torchrl_gpu.errors import ConfigurationError

Key = tuple[str, ...]


class StorageSpec:
    """Shape and dtype of every tensor of a replay buffer, for any capacity: see `ReplayBuffer`.

    Attributes:
        rows: name of the tensor with the rows of each observation.
        num_envs: number of environments that act in one step.
        stacks: number of frames of each observation that is a stack of several frames.
        history: number of frames before the newest one in the longest stack.
        min_capacity: capacity below which no complete step is certain to be stored.
    """

    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        frame_stacks: Mapping[NestedKey, int] | None = None,
    ) -> None:
        items = observation_spec.items(include_nested=True, leaves_only=True)
        self._observations: dict[Key, TensorSpec] = {_as_tuple(key): leaf for key, leaf in items}
        self.rows = {key: ".".join(("rows", *key)) for key in self._observations}
        self._action = action_spec
        self.num_envs: int = observation_spec.shape[0]
        counts = {_as_tuple(key): count for key, count in (frame_stacks or {}).items()}
        self.stacks = {key: counts[key] for key in self._observations if counts.get(key, 1) > 1}
        self.history = max(self.stacks.values(), default=1) - 1
        # A step writes at most 2 * num_envs rows, and a root refers to `history` earlier steps.
        self.min_capacity = (2 * self.history + 3) * self.num_envs

    def check(self, capacity: int, setting: str) -> None:
        """Refuse the arguments that `ReplayBuffer` refuses, except for the memory."""
        if capacity < self.min_capacity:
            raise ConfigurationError(
                f"{named(setting, capacity)}: a replay of {self.num_envs} environments "
                f"needs at least {self.min_capacity}"
            )
        if not self._observations:
            raise ConfigurationError("observation_spec: there is no observation to store")
        if self._action.shape[:1] != (self.num_envs,):
            raise ConfigurationError(
                f"the spec of action has shape {list(self._action.shape)}; "
                f"it must begin with num_envs={self.num_envs}"
            )
        for key, count in self.stacks.items():
            shape = self._observations[key].shape[1:]
            if not shape or shape[0] % count:
                raise ConfigurationError(
                    f"the observation {'.'.join(key)} of shape {list(shape)} is not a stack of "
                    f"{count} frames; its first dimension must be a multiple of {count}"
                )

    def check_step(self, step: TensorDictBase) -> None:
        """Refuse a step that lacks an entry, or has one of another shape or dtype."""
        layout = {key: (spec.shape, spec.dtype) for key, spec in self._observations.items()}
        layout |= {("next", *key): each for key, each in layout.items()}
        layout["action",] = self._action.shape, self._action.dtype
        kinds = {"reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
        layout |= {("next", name): ((self.num_envs, 1), dtype) for name, dtype in kinds.items()}
        like = {key: torch.empty(n, dtype=t, device="meta") for key, (n, t) in layout.items()}
        expected = unchecked(like, step.batch_size).to_dict()
        found = step.select(*like, strict=False).to_dict()
        check_like(found, expected, "the transition", is_exact=True)

    def places(self, capacity: int) -> int:
        """Return the number of transitions of all complete steps in a buffer."""
        return capacity // self.num_envs * self.num_envs

    def bytes_needed(self, capacity: int) -> int:
        """Return the size in bytes of all tensors, without allocating them."""
        layout = self._layout(capacity).values()
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout)

    def zeros(self, capacity: int, device: torch.device) -> dict[str, Tensor]:
        """Return all tensors by name, filled with zeros."""
        return {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in self._layout(capacity).items()
        }

    def _layout(self, capacity: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of every tensor by name: rows, steps and counters."""
        num_envs, steps = self.num_envs, capacity // self.num_envs
        layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for key, spec in self._observations.items():
            shape = tuple(spec.shape[1:])
            if key in self.stacks:  # a row holds one frame
                shape = (shape[0] // self.stacks[key], *shape[1:])
            layout[self.rows[key]] = ((capacity, *shape), spec.dtype)
        if self.stacks:
            layout["steps.age"] = ((steps, num_envs), torch.int64)
        return layout | {
            # The slots of the root and of the next observation.
            "steps.slots": ((steps, num_envs, 2), torch.int64),
            "steps.action": ((steps, *self._action.shape), self._action.dtype),
            "steps.reward": ((steps, num_envs, 1), torch.float32),
            "steps.terminated": ((steps, num_envs, 1), torch.bool),
            "steps.truncated": ((steps, num_envs, 1), torch.bool),
            # The oldest row that the step may refer to.
            "steps.first_row": ((steps,), torch.int64),
            # The number of transitions before the step.
            "steps.first_transition": ((steps,), torch.int64),
            # Ring of the places of all transitions, oldest first, and a slot for dropped writes.
            "places": ((steps * num_envs + 1,), torch.int64),
            "next_transition": ((1,), torch.int64),
            # The rows with the latest next observations; negative while the buffer is empty.
            "current_row": ((num_envs,), torch.int64),
            # The oldest complete step and its successor.
            "oldest_steps": ((2,), torch.int64),
            "next_step": ((1,), torch.int64),
            "capacity": ((1,), torch.int64),
        }


def unchecked(tensors: Mapping[Key, Tensor], batch_size: torch.Size) -> TensorDict:
    """Return tensors `[*batch_size, ...]` of one device, at least one, as one TensorDict.

    Shapes and devices are not checked: the checks take as long as all gathers of a sample.
    """
    entries: dict[str, Any] = {}
    for (*outer, name), tensor in tensors.items():
        holder = entries
        for each in outer:
            holder = holder.setdefault(each, {})
        holder[name] = tensor
    device = next(iter(tensors.values())).device
    return TensorDict._new_unsafe(entries, batch_size=batch_size, device=device)


def _as_tuple(key: NestedKey) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)
