"""Rollout buffer of an on-policy agent, on the agent's device."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map
from torchrl.data import Composite

from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.checkpoints.tensors import Pieces, StoredTensor, restore
from torchrl_gpu.devices.memory import check_memory

# Keys of a transition besides observations; `active` is optional.
_KEPT = ("action", "active")
_KEPT_AFTER = ("reward", "terminated", "truncated", "done")


class RolloutBuffer:
    """Buffer for the steps of one rollout of all environments.

    Memory is allocated once, at the first step.

    Args:
        length: number of steps T per environment, at least 1.
        observation_spec: spec of the agent's observations; other observations are not stored.
        device: device of the stored steps, usually the agent's.

    Raises:
        ConfigurationError: the memory is insufficient.
    """

    def __init__(self, length: int, observation_spec: Composite, device: torch.device) -> None:
        check_memory(
            lambda steps: self.bytes_needed(steps, observation_spec),
            length,
            device,
            setting="agent.rollout_length",
            purpose="the rollout",
        )
        self.length = length
        self.device = device
        self._batch_size = observation_spec.shape
        self._observed = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self._steps: TensorDict | None = None
        self._next = 0

    @staticmethod
    def bytes_needed(length: int, observation_spec: Composite) -> int:
        """Return the size of the observations of `length` steps, before and after each step."""
        leaves = observation_spec.values(include_nested=True, leaves_only=True)
        return 2 * length * sum(leaf.shape.numel() * leaf.dtype.itemsize for leaf in leaves)

    @property
    def is_full(self) -> bool:
        """Whether the buffer holds T steps."""
        return self._next == self.length

    @torch.no_grad()
    def extend(self, transition: TensorDictBase) -> None:
        """Copy one batched step `[num_envs]` in TorchRL's layout; a full buffer starts over.

        Raises:
            ValueError: the batch size is not [num_envs].
        """
        if transition.batch_size != self._batch_size:
            raise ValueError(
                f"transition has batch size {list(transition.batch_size)}; this buffer takes "
                f"{list(self._batch_size)}"
            )
        after = transition.get("next")
        kept = transition.select(*self._observed, *_KEPT, strict=False)
        kept.set("next", after.select(*self._observed, *_KEPT_AFTER))
        if self._steps is None:
            self._steps = kept.apply(
                lambda leaf: leaf.new_zeros(self.length, *leaf.shape),
                batch_size=[self.length, *kept.batch_size],
            )
        steps, done = self._steps, kept.get(("next", "done"))
        # An environment without `active` may leave out transitions from some step on.
        if "active" in kept and "active" not in steps:
            steps.set("active", torch.ones_like(done).expand(self.length, *done.shape).clone())
        elif "active" in steps and "active" not in kept:
            kept.set("active", torch.ones_like(done))
        if self.is_full:
            self._next = 0
        steps[self._next] = kept
        self._next += 1

    def rollout(self) -> TensorDict:
        """Return the stored steps `[T, num_envs]`, time first; valid until the next `extend`."""
        assert self._steps is not None, "the rollout buffer is empty"
        return self._steps[: self._next]

    def clear(self) -> None:
        """Remove all steps."""
        self._next = 0

    def part(self) -> ReplayPart:
        """Return the stored steps to save; nothing before the first step and of a full buffer."""
        if self._steps is None or self.is_full:
            return ReplayPart({})
        steps = tree_map(lambda leaf: Pieces((leaf,)), self.state_dict())
        # The last step of a rollout is followed by updates, which may shift its images in place.
        return ReplayPart(steps, steps=self.length - self._next - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the stored steps by key; an empty dict before the first step."""
        return {} if self._steps is None else self.rollout().to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`, with tensors on any device or in a file.

        Steps that exceed the length of this buffer are those of another setting: the rollout then
        begins anew.
        """
        self.clear()
        if not state or (steps := state["action"].shape[0]) > self.length:
            return

        def allocate(source: Tensor | StoredTensor) -> Tensor:
            shape = (self.length, *source.shape[1:])
            target = torch.zeros(shape, dtype=source.dtype, device=self.device)
            restore(target[:steps], source)
            return target

        batch_size = [self.length, *state["action"].shape[1:2]]
        self._steps = TensorDict(tree_map(allocate, state), batch_size, device=self.device)
        self._next = steps
