"""Prioritized replay on the device.

Source: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.checkpoints.tensors import values_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.contents import State
from torchrl_gpu.replay.storage import Key, StorageSpec
from torchrl_gpu.replay.sum_tree import FAN_OUT, SumTree

# Added to every priority, so that every transition can still be sampled.
_MIN_PRIORITY = 1e-6


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that samples transitions of higher priority more often.

    New transitions get the largest priority so far. No values are read back to the host, except one
    from the first priorities.

    The other arguments, and the errors, are those of `ReplayBuffer`.

    Args:
        priority_exponent: priority exponent (alpha), 0 (uniform) to 1 (proportional).
        weight_exponent: function that returns the importance-sampling exponent (beta) `[]`, 0 to 1
            (full correction), for each sampled batch; None for a constant 1.
        processes: processes whose batches make up one batch, each drawn from its own buffer.
    """

    priority_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    weight_exponent: Callable[[], Tensor] | None = None
    processes: Processes = ONE_PROCESS
    _has_checked = False  # the first priorities of an agent

    def __post_init__(self) -> None:
        """Allocate the buffer and the tree of priorities."""
        super().__post_init__()
        self._tree = SumTree(self._num_places, self.device)
        self._max_priority = torch.ones(1, device=self.device)
        # The places of a step follow one another; these environments' are in all its groups.
        touching = torch.arange(0, self.num_envs + FAN_OUT - 1, FAN_OUT, device=self.device)
        self._touching_envs = touching.clamp(max=self.num_envs - 1)
        self._tensors["leaves"] = self._tree.leaves
        self._tensors["max_priority"] = self._max_priority

    @classmethod
    def bytes_needed(cls, capacity: int, spec: StorageSpec) -> int:
        """Return the size in bytes, priorities included; see `ReplayBuffer.bytes_needed`."""
        tree = SumTree.bytes_needed(spec.places(capacity))
        return super().bytes_needed(capacity, spec) + tree + torch.float32.itemsize

    def sample(self, batch_size: int) -> TensorDict:
        """Draw transitions in proportion to their priorities, from strata as in `SumTree.draw`.

        Returns:
            Transitions as from `ReplayBuffer.sample`, with two more keys: `weight` [batch_size, 1],
            the importance-sampling weights, divided by the largest of the batches of all processes;
            and `place` [batch_size], which identifies the transitions in `update_priorities`.
        """
        self._refuse_if_empty()
        place = self._tree.draw(batch_size)
        leaf = self._tree.leaves.index_select(0, place)
        # w_i = (N P(i))^-beta / max_j w_j = (p_i / min_j p_j)^(-alpha beta)         (sec. 3.4)
        smallest = leaf.min()
        weight = smallest / leaf
        if self.processes.count > 1:
            # P(i) = p_i / sum_k p_k over the tree of its process; all processes draw equally often.
            share = smallest / self._tree.total
            weight = weight * (self.processes.minimum(share) / share)
        if self.weight_exponent is not None:
            weight = weight ** self.weight_exponent()
        others: dict[Key, Tensor] = {("weight",): weight.unsqueeze(1), ("place",): place}
        return self._transitions(place, others, self.n_step)

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Set new priorities for the transitions of a batch.

        Args:
            batch: batch from `sample`.
            priorities: new priorities of its transitions, floating-point `[B]`, at least 0; one
                that is not finite counts as the largest so far.

        Raises:
            ConfigurationError: `priorities` is None or has another shape, or one of the first
                batch is negative.
        """
        if priorities is None:
            raise ConfigurationError(
                "agent: prioritized replay needs priorities, but `loss` returned none"
            )
        place = batch.get("place")
        if priorities.shape != place.shape:
            raise ConfigurationError(
                f"agent: the priorities of `loss` have to be {list(place.shape)}, not "
                f"{list(priorities.shape)}"
            )
        if not self._has_checked:  # once, because it reads a value back
            self._has_checked = True
            if (priorities < 0.0).any():
                raise ConfigurationError(
                    "agent: priorities of `loss` are negative; return absolute errors"
                )
        priorities = priorities.detach().to(torch.float32)
        priority = (priorities + _MIN_PRIORITY).where(priorities.isfinite(), self._max_priority)
        self._max_priority.copy_(torch.maximum(self._max_priority, priority.max()))
        # Transitions that were overwritten since the draw keep priority 0.
        is_stored = self._tree.leaves.index_select(0, place) > 0.0
        leaf = torch.where(is_stored, priority**self.priority_exponent, 0.0)
        self._tree.update(place, leaf)

    def sampling_state(self) -> dict[str, Tensor]:
        """Return copies of the priorities; see `ReplayBuffer.sampling_state`."""
        return {"leaves": self._tree.leaves.clone(), "max_priority": self._max_priority.clone()}

    def load_sampling_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore priorities; see `ReplayBuffer.load_sampling_state`.

        Raises:
            ConfigurationError: a priority is NaN, infinite or negative.
        """
        self._check_priorities(state)
        self._tree.leaves.copy_(state["leaves"])
        self._max_priority.copy_(state["max_priority"])
        self._tree.rebuild()

    def step_of_age(self, age: int) -> TensorDict:
        """Return a complete step with its priorities; see `ReplayBuffer.step_of_age`."""
        leaf = self._tree.leaves.index_select(0, self._places_of_age(age))
        greatest = self._max_priority.expand(self.num_envs)
        return super().step_of_age(age).update({"leaf": leaf, "greatest": greatest})

    def append(self, step: TensorDictBase) -> None:
        """Copy a step of another buffer with its priorities; see `ReplayBuffer.append`."""
        super().append(step)
        self._max_priority.copy_(torch.maximum(self._max_priority, step.get("greatest").max()))
        place = self._places_of_age(1)
        # A row that is not a transition here, because its stack of frames is not complete, keeps 0.
        is_listed = self._tree.leaves.index_select(0, place) > 0.0
        self._tree.update(place, torch.where(is_listed, step.get("leaf"), 0.0))

    def load_state_dict(self, *states: State) -> None:
        """Restore a state; see `ReplayBuffer.load_state_dict`."""
        super().load_state_dict(*states)
        self._tree.rebuild()

    def _check_state(self, state: State) -> None:
        super()._check_state(state)
        self._check_priorities(state)

    def _check_priorities(self, state: State) -> None:
        for name in ("leaves", "max_priority"):
            values = values_of(state[name])
            if not ((values >= 0.0) & values.isfinite()).all():
                raise ConfigurationError(
                    f"the saved replay is damaged: {name} holds NaN, infinity or a negative number"
                )

    def _extend_by_step(self, transition: TensorDictBase) -> Tensor | None:
        steps = torch.cat((self._next_step, self._oldest_steps))
        is_listed = super()._extend_by_step(transition)

        first_places = (steps % self._step_capacity * self.num_envs).unsqueeze(1)
        places = (first_places + self._env_numbers).flatten()
        priority = self._tree.leaves.index_select(0, places).view(3, self.num_envs)
        # Steps that lost a row to this step get priority 0, so they are never drawn.
        priority = torch.where((steps < self._oldest_steps[:1]).unsqueeze(1), 0.0, priority)
        priority[0] = self._max_priority**self.priority_exponent
        if is_listed is not None:
            priority[0] *= is_listed
        touched = (first_places + self._touching_envs).flatten()
        self._tree.update(places, priority.flatten(), touched)
        return is_listed
