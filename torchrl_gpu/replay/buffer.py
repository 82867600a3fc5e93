"""Replay buffer on the device that stores every observation once and needs no host reads."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.replay.contents import Contents, State
from torchrl_gpu.replay.n_step import look_ahead
from torchrl_gpu.replay.stacks import FrameStacks
from torchrl_gpu.replay.storage import Key, StorageSpec, unchecked

# Random integers stay below 2**31, the largest range that all backends' generators cover.
_DRAW_RANGE = 2**31 - 1


class ReplayBuffer(CheckedFields):
    """Replay buffer with the newest transitions of a batched environment, on the agent's device.

    The last observation of a transition is usually the first one of the next transition of the same
    environment. It is stored in one row that both transitions refer to, so a transition costs one
    observation instead of two. Where the next root observation differs (after a reset, or after an
    interruption of collection), it gets a fresh row. The buffer detects this by comparing values on
    the device, so `next` is the true last observation in all cases.

    Rows are numbered in the order of writing: one batched step writes a fresh row for each
    environment that needs one, then the next observations of all environments. Row number `n` is
    stored in slot `n % capacity`, so writing a row overwrites the oldest one. All rows of step `t`
    are at least as new as the next observations of step `t - 1`, which get newer from step to step.
    The oldest steps therefore lose their rows first, and the complete steps are always the newest
    ones. Place `t * num_envs + e` belongs to environment `e` in step `t`; the next step of the same
    environment is `num_envs` places later. The places of all transitions are listed in
    chronological order; rows that are not transitions (`active` is false) are not listed and
    therefore never sampled.

    A row of a stack of frames holds the newest frame alone. A sample gathers the other frames from
    the rows of the preceding steps of the same environment; before the first frame of an episode,
    that frame is repeated. A transition whose root cannot be rebuilt from the rows, because
    collection began in the middle of an episode, is not listed either. Every sampled stack is
    therefore one that the agent observed.

    Shapes are fixed and all bookkeeping uses tensors, so `extend` and `sample` need no host reads
    and can be compiled or captured in a graph.

    Args:
        capacity: number of observations to keep, at least 3 * num_envs; with stacks of `k` frames,
            at least (2 * k + 1) * num_envs. With episodes of `L` steps on average, about
            `capacity * L / (L + 1)` transitions can be sampled.
        observation_spec: spec of the agent's observations, batch size [num_envs], nested keys
            allowed. Observations keep their dtype: pixels stay uint8.
        action_spec: spec of the action, shape [num_envs, *action].
        device: device of the stored and sampled transitions.
        n_step: number of environment steps that a sampled transition spans, at least 1; fewer
            if the episode ends or the following steps are not stored.
        gamma: discount factor per environment step in the sum of n-step rewards, 0 to 1.
        frame_stacks: number of frames of each observation that is a stack, by key, see
            `Capabilities`; keys of other observations are ignored. None for no stacks.
        setting: name of the argument or setting that determines the capacity, see `check_memory`.

    Attributes:
        memory: line about the memory that the buffer takes.

    Raises:
        ConfigurationError: the capacity is too small for `num_envs`, the specs have different
            batch sizes, an observation is not a stack of that many frames, or the memory is
            insufficient; the message names the capacity that fits.
    """

    capacity: Annotated[int, Field(ge=1)] = field(kw_only=False)
    observation_spec: Composite = field(kw_only=False)
    action_spec: TensorSpec = field(kw_only=False)
    device: torch.device = field(kw_only=False)
    n_step: Annotated[int, Field(ge=1)] = 1
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    frame_stacks: Mapping[Any, Annotated[int, Field(ge=1)]] | None = None
    setting: str = "capacity"

    def __post_init__(self) -> None:
        """Allocate the buffer."""
        capacity, device = self.capacity, self.device
        spec = StorageSpec(self.observation_spec, self.action_spec, self.frame_stacks)
        spec.check(capacity, self.setting)
        num_envs = self.num_envs = spec.num_envs
        self.memory = check_memory(
            lambda capacity: self.bytes_needed(capacity, spec),
            capacity,
            device,
            setting=self.setting,
            purpose="the replay",
            minimum=spec.min_capacity,
        )
        self._tensors = spec.zeros(capacity, device)
        self._rows = {key: self._tensors[name] for key, name in spec.rows.items()}
        self._steps = {
            name.removeprefix("steps."): tensor
            for name, tensor in self._tensors.items()
            if name.startswith("steps.")
        }
        self._stacks = FrameStacks(spec, self._rows, self._steps)
        # Views by place; tensors of one dimension are the fastest to gather from.
        self._by_place = {name: self._steps[name].flatten(0, 1) for name in ("slots", "action")}
        for name in ("reward", "terminated", "truncated"):
            self._by_place[name] = self._steps[name].flatten()
        self._step_capacity = capacity // num_envs
        self._tensors["capacity"].fill_(capacity)
        self._current_row = self._tensors["current_row"]
        self._current_row.copy_(torch.arange(-num_envs, 0, device=device))
        self._oldest_steps = self._tensors["oldest_steps"]
        self._oldest_steps.copy_(torch.arange(2, device=device))
        self._next_step = self._tensors["next_step"]
        self._places = self._tensors["places"]
        self._num_places = spec.places(capacity)
        self._contents = Contents(self._tensors, spec, capacity, self.setting)
        self._spec, self._is_checked = spec, False  # the first step
        self._next_transition = self._tensors["next_transition"]
        self._env_numbers = torch.arange(num_envs, device=device)
        self._is_empty = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Return settings and contents for a pickle, which would separate views of one tensor."""
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _restored, (type(self), settings, self.state_dict())

    @classmethod
    def bytes_needed(cls, capacity: int, spec: StorageSpec) -> int:
        """Return the exact size in bytes of a buffer of a capacity, without allocating it."""
        return spec.bytes_needed(capacity)

    @torch.no_grad()
    def extend(self, transition: TensorDictBase) -> None:
        """Copy one or several batched steps into the buffer.

        Args:
            transition: transitions in TorchRL's layout on the buffer's device, batch size
                [num_envs], or [num_envs, T] with time last, as TorchRL's collectors return them.
                Required keys are the observations, `action`, and under `next` the observations and
                `reward`, `terminated` and `truncated` [..., 1]. Optional is `active` [..., 1],
                false for rows that are not transitions.

        Raises:
            ConfigurationError: the first step lacks an entry, or has one of another shape or dtype.
            ValueError: the batch size is neither [num_envs] nor [num_envs, T].
        """
        batch_size = transition.batch_size
        if len(batch_size) not in (1, 2) or batch_size[0] != self.num_envs:
            raise ValueError(
                f"transition has batch size {list(batch_size)}; "
                f"this buffer takes [{self.num_envs}] or [{self.num_envs}, time]"
            )
        for step in transition.unbind(1) if len(batch_size) == 2 else (transition,):
            if not self._is_checked:
                self._spec.check_step(step)
                self._is_checked = True
            if self._extend_by_step(step) is None:
                self._is_empty = False

    @property
    def can_capture(self) -> bool:
        """Whether a graph can replay `sample`: it depends on tensors alone, which stay in place.

        That of a derived class may not.
        """
        return type(self) is ReplayBuffer

    def sample(self, batch_size: int) -> TensorDict:
        """Draw one or more stored transitions uniformly, with replacement.

        Random numbers come from the device's default generator. The relative error of a
        transition's probability is at most `len(buffer) / 2**31`, 0.05 % at a million.

        Returns:
            Transitions [batch_size] on the buffer's device: the observations and `action`, and
            under `next` the observations, `reward`, `terminated`, `truncated` and `done`. With
            `n_step` above 1, `next` is the entry up to `n_step` steps ahead, `reward` is the
            discounted sum of the rewards in between, and `steps_to_next_obs` int64 [batch_size, 1]
            is the number of these steps.

        Raises:
            RuntimeError: the buffer is empty.
        """
        self._refuse_if_empty()
        first, stored = self._stored_transitions()
        draw = torch.randint(_DRAW_RANGE, (batch_size,), device=self.device)
        number = (first + draw % stored.clamp(min=1)) % self._num_places
        return self._transitions(self._places.index_select(0, number), {}, self.n_step)

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Do nothing: this buffer samples uniformly. See `PrioritizedReplayBuffer`."""

    def sampling_state(self) -> dict[str, Tensor]:
        """Return the state of sampling, beside the transitions: none."""
        return {}

    def load_sampling_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state from `sampling_state` of a buffer with the same transitions."""

    @property
    def observation_names(self) -> list[str]:
        """Names of the stored observations, nested keys joined by dots."""
        return [".".join(key) for key in self._rows]

    @property
    def is_empty(self) -> bool:
        """Whether no transition can be sampled. Reads the device until one can, and never again.

        The rows of the first steps may all be left out of the transitions (`active` is false, or
        the stacks of frames are not complete).
        """
        self._is_empty = self._is_empty and len(self) == 0
        return self._is_empty

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled. Reads the device: slow."""
        return int(self._stored_transitions()[1])

    @property
    def complete_steps(self) -> int:
        """Number of batched steps with all their rows. Reads the device: slow."""
        return int(self._next_step - self._oldest_steps[0])

    def step_of_age(self, age: int) -> TensorDict:
        """Return a complete step `[num_envs]`, for any `n_step`. Reads the device: slow.

        Its age is 1 for the newest step, and at most `complete_steps`. `append` takes the result.
        """
        place = self._places_of_age(age)
        slots = (self._next_step - age + torch.arange(2, device=self.device)) % self._step_capacity
        first, stop = self._steps["first_transition"].index_select(0, slots).tolist()
        if age == 1:
            stop = int(self._next_transition)
        numbers = torch.arange(first, stop, device=self.device) % self._num_places
        active = torch.isin(place, self._places.index_select(0, numbers))
        return self._transitions(place, {("active",): active.unsqueeze(1)}, n_step=1)

    def append(self, step: TensorDictBase) -> None:
        """Copy a step of another buffer, from `step_of_age`, into this one."""
        self.extend(step)

    def part(self, since: tuple[int, ...] = ()) -> ReplayPart:
        """Return the contents to save, or those since an earlier part. Reads the device: slow.

        The tensors of the rings are views. Those that the next steps overwrite are copies, so that
        2 % of the steps that fit into the buffer, at least, leave the part as it is.

        Args:
            since: `ReplayPart.written` of the earlier part; empty for all contents, which the part
                also holds where `since` is not one of this buffer.
        """
        return self._contents.part(since)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the contents, by name. Reads the device: slow."""
        return {name: value.clone() for name, value in self.part().state.items()}

    def load_state_dict(self, *states: State) -> None:
        """Restore a state, which then gives the same samples.

        Args:
            states: return value of `state_dict`, or the states of consecutive parts, oldest first.
                Their tensors may be on any device or in a file.

        Raises:
            ConfigurationError: the states were saved with another capacity or other specs, do not
                make up the contents of a buffer, or refer to entries that do not exist; the buffer
                stays as it was.
        """
        for state in states:
            self._check_state(state)
        self._contents.load(states)
        self._is_empty = True  # until `is_empty` has found a transition

    def _check_state(self, state: State) -> None:
        """Refuse a state that does not fit; an override checks the additions of a subclass."""
        self._contents.check(state)

    def _extend_by_step(self, transition: TensorDictBase) -> Tensor | None:
        """Store one step, and return which rows are transitions, bool [num_envs]; None for all."""
        current_row = self._current_row
        after = transition.get("next")
        is_listed = transition.get("active", None)
        if is_listed is not None:
            is_listed = is_listed.reshape(self.num_envs)

        if self._stacks.history:
            before = self._places_of_age(1)
            is_fresh, is_whole = self._stacks.compare(transition, current_row, before)
            is_listed = is_whole if is_listed is None else is_listed & is_whole
            self._stacks.write_age(is_fresh, self._next_step)
        else:
            current_slot = current_row % self.capacity
            is_fresh = current_row < 0
            for key, rows in self._rows.items():
                differs = rows.index_select(0, current_slot) != transition.get(key)
                is_fresh = is_fresh | differs.reshape(self.num_envs, -1).any(1)

        # Fresh rows follow the newest row, current_row[-1]; the next observations follow them.
        fresh_so_far = is_fresh.cumsum(0)
        row = torch.where(is_fresh, current_row[-1:] + fresh_so_far, current_row)
        next_row = current_row + (fresh_so_far[-1:] + self.num_envs)
        slots = torch.stack((row, next_row), 1) % self.capacity
        for key, rows in self._rows.items():
            # For a root that is not fresh, this writes the same values again.
            root = self._stacks.newest_frame(key, transition.get(key))
            values = torch.stack((root, self._stacks.newest_frame(key, after.get(key))), 1)
            rows.index_put_((slots.flatten(),), values.flatten(0, 1))

        step_slot = self._next_step % self._step_capacity
        for name, value in (
            ("slots", slots),
            ("first_row", current_row[:1]),
            ("action", transition.get("action")),
            ("reward", after.get("reward")),
            ("terminated", after.get("terminated")),
            ("truncated", after.get("truncated")),
            ("first_transition", self._next_transition),
        ):
            self._steps[name].index_put_((step_slot,), value)
        self._list_places(step_slot, is_listed)
        self._next_step.add_(1)
        current_row.copy_(next_row)

        # One step writes at most 2 * num_envs rows, and the first row advances by at least num_envs
        # from step to step: at most the two oldest steps can lose a row.
        oldest = self._oldest_steps
        if self._stacks.history:
            oldest = oldest - self._stacks.history
        oldest_rows = self._steps["first_row"].index_select(0, oldest % self._step_capacity)
        if self._stacks.history:
            # The first steps give way one by one too, as if steps had preceded them.
            oldest_rows = torch.where(oldest < 0, (oldest - 1) * self.num_envs, oldest_rows)
        has_lost_a_row = next_row[-1:] - oldest_rows >= self.capacity
        self._oldest_steps.add_(has_lost_a_row.sum())
        return is_listed

    def _list_places(self, step_slot: Tensor, is_listed: Tensor | None) -> None:
        """Append the places of a step's transitions to the ring."""
        place = step_slot * self.num_envs + self._env_numbers
        if is_listed is None:
            number = (self._next_transition + self._env_numbers) % self._num_places
            count: Tensor | int = self.num_envs
        else:
            so_far = is_listed.cumsum(0)
            number = (self._next_transition + so_far - 1) % self._num_places
            number = torch.where(is_listed, number, self._num_places)
            count = so_far[-1:]
        self._places.index_put_((number,), place)
        self._next_transition.add_(count)

    def _places_of_age(self, age: int) -> Tensor:
        step_slot = (self._next_step - age) % self._step_capacity
        return step_slot * self.num_envs + self._env_numbers

    def _stored_transitions(self) -> tuple[Tensor, Tensor]:
        """Return the number of the oldest transition and the count of transitions, both `[1]`."""
        slot = self._oldest_steps[:1] % self._step_capacity
        first = self._steps["first_transition"].index_select(0, slot)
        return first, self._next_transition - first

    def _transitions(self, place: Tensor, others: Mapping[Key, Tensor], n_step: int) -> TensorDict:
        """Return the transitions that start at places `[B]`, with other entries `[B, ...]`."""
        batch = dict(others)
        if n_step == 1:
            last, reward = place, self._by_place["reward"].index_select(0, place)
        else:
            newest_step = (self._next_step - 1) % self._step_capacity
            last, reward, steps = look_ahead(
                place, self._by_place, self.num_envs, newest_step, n_step, self.gamma
            )
            batch["steps_to_next_obs",] = steps.unsqueeze(1)
        slots, next_slots = self._stacks.root_slots(place), self._stacks.next_slots(last)
        for key in self._rows:
            batch[key] = self._stacks.observation(key, slots)
            batch[("next", *key)] = self._stacks.observation(key, next_slots)
        batch["action",] = self._by_place["action"].index_select(0, place)
        for name in ("terminated", "truncated"):
            batch["next", name] = self._by_place[name].index_select(0, last).unsqueeze(1)
        batch["next", "done"] = batch["next", "terminated"] | batch["next", "truncated"]
        batch["next", "reward"] = reward.unsqueeze(1)
        return unchecked(batch, place.shape)

    def _refuse_if_empty(self) -> None:
        if self.is_empty:
            raise RuntimeError("the replay buffer is empty: extend it before sampling")


def _restored(kind: type[ReplayBuffer], settings: dict[str, Any], state: State) -> ReplayBuffer:
    buffer = kind(**settings)
    buffer.load_state_dict(state)
    return buffer
