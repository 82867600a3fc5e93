"""Stacks of frames in a replay buffer that stores each frame once."""

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.replay.storage import Key, StorageSpec


class FrameStacks:
    """Rebuilds observations from rows that hold the newest frame of each stack.

    The earlier frames of a stack are the rows of the preceding steps of the same environment. The
    age of a root counts these rows, from the last root with a fresh row on; that root's frame also
    stands for all frames before it.

    Args:
        spec: lengths of the stacks.
        rows: rows of each observation.
        steps: tensors per step: `slots` [steps, num_envs, 2] of the root and the next observation
            and, if there are stacks, `age` [steps, num_envs].
    """

    def __init__(
        self, spec: StorageSpec, rows: dict[Key, Tensor], steps: dict[str, Tensor]
    ) -> None:
        self.history, self._stacks = spec.history, spec.stacks
        self._rows = rows
        self._steps = steps
        slots = steps["slots"]
        self._step_capacity, self._num_envs = slots.shape[:2]
        self._roots, self._next = slots.flatten(0, 1).unbind(1)
        # Number of steps from the newest frame of a stack back to each frame, oldest frame first.
        self._steps_back = torch.arange(self.history, -1, -1, device=slots.device)

    def newest_frame(self, key: Key, observation: Tensor) -> Tensor:
        """Return the part of an observation `[B, ...]` that a row holds."""
        count = self._stacks.get(key, 1)
        return observation if count == 1 else observation.chunk(count, 1)[-1]

    def observation(self, key: Key, slots: Tensor) -> Tensor:
        """Return an observation `[B, ...]` from the slots of its frames `[B, history + 1]`."""
        count = self._stacks.get(key, 1)
        if count == 1:
            return self._rows[key].index_select(0, slots[:, -1])
        frames = self._rows[key].index_select(0, slots[:, -count:].flatten())
        return frames.reshape(len(slots), -1, *frames.shape[2:])

    def root_slots(self, place: Tensor) -> Tensor:
        """Return the slots `[B, history + 1]` of the roots at places `[B]`, oldest frame first."""
        if not self.history:
            return self._roots.index_select(0, place).unsqueeze(1)
        age = self._steps["age"].flatten().index_select(0, place)
        back = torch.minimum(self._steps_back, age.unsqueeze(1))
        earlier = (place.unsqueeze(1) - back * self._num_envs) % len(self._roots)
        return self._roots.index_select(0, earlier.flatten()).reshape(earlier.shape)

    def next_slots(self, place: Tensor) -> Tensor:
        """Return the slots `[B, history + 1]` of the next observations at places `[B]`."""
        newest = self._next.index_select(0, place).unsqueeze(1)
        return torch.cat((self.root_slots(place)[:, 1:], newest), 1) if self.history else newest

    def compare(
        self, root: TensorDictBase, current_row: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compare the root of a step with the latest next observations.

        Args:
            root: observations `[num_envs]`.
            current_row: numbers of the rows with the latest next observations, `[num_envs]`;
                negative while the buffer is empty.
            before: places of the step before, `[num_envs]`.

        Returns:
            Two masks, bool `[num_envs]`: whether the root needs a fresh row, and whether the rows
            then give all frames of the root.
        """
        slots = self.next_slots(before)
        is_new = current_row < 0
        differs, repeats = is_new, torch.ones_like(is_new)
        for key in self._rows:
            shape = (self._num_envs, self._stacks.get(key, 1), -1)
            given = root.get(key).reshape(shape)
            same = (self.observation(key, slots).reshape(shape) == given).all(2)
            is_new = is_new | ~same[:, -1]
            differs = differs | ~same.all(1)
            repeats = repeats & (given == given[:, -1:]).flatten(1).all(1)
        # A stack from the middle of an episode needs no further fresh row: the rows of the next
        # steps complete it.
        is_fresh = is_new | (differs & repeats)
        return is_fresh, torch.where(is_fresh, repeats, ~differs)

    def write_age(self, is_fresh: Tensor, next_step: Tensor) -> None:
        """Store the ages of the roots of a step; a fresh row, bool `[num_envs]`, has age 0."""
        age = self._steps["age"]
        before = age.index_select(0, (next_step - 1) % self._step_capacity)
        following = torch.where(is_fresh, 0, (before + 1).clamp(max=self.history))
        age.index_put_((next_step % self._step_capacity,), following)
