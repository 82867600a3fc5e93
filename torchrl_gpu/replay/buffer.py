"""Replay on the device: every observation stored once, sampled without reading anything back."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.arguments import checked
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.layout import (
    check_layout,
    check_memory,
    leaves_of,
    replay_layout,
    row_name,
)

# Of a step: the slots of the root and the next observation, and what else a transition holds.
_SAMPLED_NAMES = ("slots", "action", "reward", "terminated", "truncated")
# And the oldest row that the step may refer to, and how many transitions there were before it.
_STEP_NAMES = (*_SAMPLED_NAMES, "first_row", "first_transition")

# Draws stay below 2**31, the largest range that every backend's generator covers.
_DRAW_RANGE = 2**31 - 1


class ReplayBuffer:
    """The newest transitions of a batched world, kept on the device that learns from them.

    The observation that ends one transition begins the next one of the same environment. It is
    written to one row, to which both transitions refer, so that a transition costs one observation
    instead of two. Where the next root observation differs (after a reset, or when collection was
    interrupted), it gets a fresh row of its own; this is found out by comparing contents on the
    device, so it holds whatever the reason, and `next` stays the true last observation.

    Rows are numbered as they are written: one batched step writes a fresh row for each environment
    that needs one, then the next observations of all environments. Row number `n` lies in slot
    `n % capacity`, so writing a row overwrites the oldest one. The rows that step `t` refers to are
    all at least as young as the next observations of step `t - 1`; as these are younger from step
    to step, overwriting ends the life of the oldest steps first, and the living steps are always
    the newest ones. Place `t * num_envs + e` is that of environment `e` in step `t`, and what
    follows in the same environment is `num_envs` further on. Where the world says by `active` that
    a row is no transition, its place is not drawn: the places of all transitions are listed in the
    order in which they came.

    Shapes are fixed and all bookkeeping is done by tensors, so `extend` and `sample` read nothing
    back to the host and can be compiled or captured in a graph.

    Args:
        capacity: observations to keep, at least 3 * num_envs. With episodes of `L` steps on average
            about `capacity * L / (L + 1)` transitions can be sampled.
        observation_spec: the leaves that the agent observes, batch size [num_envs], nested keys
            allowed. Stored in their own dtype: pixels stay uint8.
        action_spec: of the leaf `action`, shape [num_envs, *action].
        num_envs: environments that act at the same time.
        device: where everything is stored and sampled.
        n_step: environment steps that a sampled transition spans, at least 1; fewer where the
            episode ends or what came next is not stored yet.
        gamma: discount per environment step of the rewards that an n-step transition sums up.

    Raises:
        ConfigurationError: the capacity is too small for `num_envs`, a spec does not begin with
            `num_envs`, or the memory does not suffice; then the capacity that would fit is named.
    """

    @checked
    def __init__(
        self,
        capacity: Annotated[int, Field(ge=1)],
        observation_spec: Composite,
        action_spec: TensorSpec,
        num_envs: Annotated[int, Field(ge=1)],
        device: torch.device,
        *,
        n_step: Annotated[int, Field(ge=1)] = 1,
        gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0,
    ) -> None:
        check_layout(capacity, observation_spec, action_spec, num_envs)
        check_memory(
            lambda capacity: self.bytes_needed(capacity, observation_spec, action_spec, num_envs),
            capacity,
            3 * num_envs,
            device,
        )
        self.capacity = capacity
        self.num_envs = num_envs
        self.device = device
        self.n_step = n_step
        self.gamma = gamma
        self._tensors = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in replay_layout(
                capacity, observation_spec, action_spec, num_envs
            ).items()
        }
        self._rows = {key: self._tensors[row_name(key)] for key in leaves_of(observation_spec)}
        self._steps = {name: self._tensors[f"steps.{name}"] for name in _STEP_NAMES}
        self._step_capacity = capacity // num_envs
        self._tensors["capacity"].fill_(capacity)
        # Numbers of the rows that hold the latest next observations; negative while there are none.
        self._current_row = self._tensors["current_row"]
        self._current_row.copy_(torch.arange(-num_envs, 0, device=device))
        # Numbers of the oldest step that is whole, of the one after it, and of the one to come.
        self._oldest_steps = self._tensors["oldest_steps"]
        self._oldest_steps.copy_(torch.arange(2, device=device))
        self._next_step = self._tensors["next_step"]
        # Places of all transitions, oldest first, in a ring; one more slot takes what is not kept.
        self._places = self._tensors["places"]
        self._num_places = self._step_capacity * num_envs
        self._next_transition = self._tensors["next_transition"]
        self._env_numbers = torch.arange(num_envs, device=device)
        self._is_empty = True

    @classmethod
    def bytes_needed(
        cls, capacity: int, observation_spec: Composite, action_spec: TensorSpec, num_envs: int
    ) -> int:
        """Return the exact size in bytes of a buffer of these arguments, without building it.

        Args:
            capacity: observations to keep.
            observation_spec: the leaves to store, batch size [num_envs].
            action_spec: of the action, shape [num_envs, *action].
            num_envs: environments that act at the same time.
        """
        layout = replay_layout(capacity, observation_spec, action_spec, num_envs)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())

    def extend(self, transition: TensorDictBase) -> None:
        """Store one batched step, or several.

        Args:
            transition: in TorchRL's format and on the buffer's device, batch size [num_envs], or
                [num_envs, T] with time last, as collectors return it. Read are the observation
                leaves, `action`, and under `next` the observation leaves, `reward`, `terminated`
                and `truncated`, the last three of shape [..., 1]; and `active` [..., 1] if it is
                there, false for rows that are no transitions. Values are copied.

        Raises:
            ValueError: the batch size is neither [num_envs] nor [num_envs, T].
        """
        batch_size = transition.batch_size
        if len(batch_size) not in (1, 2) or batch_size[0] != self.num_envs:
            raise ValueError(
                f"a transition of batch size {list(batch_size)} was given; "
                f"this buffer takes [{self.num_envs}] or [{self.num_envs}, time]"
            )
        for step in transition.unbind(1) if len(batch_size) == 2 else (transition,):
            self._extend_by_step(step)
        self._is_empty = False

    def sample(self, batch_size: int) -> TensorDict:
        """Draw transitions uniformly, with replacement, from all that are stored.

        Draws come from the device's global random number generator. A transition's probability is
        off by at most `len(buffer) / 2**31` of itself, 0.05 % at a million.

        Args:
            batch_size: transitions to draw, at least 1.

        Returns:
            Batch size [batch_size], on the buffer's device: the observation leaves and `action`,
            and under `next` the observation leaves, `reward`, `terminated`, `truncated` and `done`.
            With `n_step` above 1, `next` is what lies up to so many steps ahead, `reward` the
            discounted sum of the rewards on the way, and `steps_to_next_obs` [batch_size, 1] says
            how many they were.

        Raises:
            RuntimeError: nothing has been stored yet.
        """
        self._refuse_if_empty()
        first, stored = self._stored_transitions()
        draw = torch.randint(_DRAW_RANGE, (batch_size,), device=self.device)
        number = (first + draw % stored.clamp(min=1)) % self._num_places
        return self._transitions(self._places.index_select(0, number))

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Do nothing, because this buffer draws uniformly; see `PrioritizedReplayBuffer`."""

    def __len__(self) -> int:
        """Return how many transitions can be sampled. Reads the device: not for the hot path."""
        return int(self._stored_transitions()[1])

    def state_dict(self) -> dict[str, Tensor]:
        """Return what has been written, by name. Reads the device: not for the hot path.

        The tensors are views of the buffer: save or clone them before it is extended again.
        """
        written = {
            "rows": int(self._current_row[-1]) + 1,
            "steps": int(self._next_step),
            "places": int(self._next_transition),
        }
        return {
            name: tensor[: written.get(name.partition(".")[0], len(tensor))]
            for name, tensor in self._tensors.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy a saved state into this buffer, which then samples exactly what was saved.

        Args:
            state: what `state_dict` returned, on any device.

        Raises:
            ConfigurationError: the state is that of a buffer of another capacity or other specs.
        """
        if state.keys() != self._tensors.keys():
            names = ", ".join(sorted(state.keys() ^ self._tensors.keys()))
            raise ConfigurationError(
                f"the saved replay differs from this one in what it has: {names}"
            )
        if int(state["capacity"]) != self.capacity:
            raise ConfigurationError(
                f"the saved replay has capacity={int(state['capacity'])}, this one {self.capacity}"
            )
        for name, tensor in self._tensors.items():
            saved = state[name]
            if saved.shape[1:] != tensor.shape[1:] or saved.dtype != tensor.dtype:
                raise ConfigurationError(
                    f"the saved replay has {name} as {saved.dtype} {list(saved.shape[1:])}, "
                    f"this one as {tensor.dtype} {list(tensor.shape[1:])}"
                )
        for name, tensor in self._tensors.items():
            tensor[: len(state[name])].copy_(state[name])
        self._is_empty = int(self._next_step) == 0

    def _extend_by_step(self, transition: TensorDictBase) -> None:
        """Store one step of batch size [num_envs]."""
        current_row = self._current_row
        after = transition.get("next")

        current_slot = current_row % self.capacity
        is_fresh = current_row < 0
        for key, rows in self._rows.items():
            differs = rows.index_select(0, current_slot) != transition.get(key)
            is_fresh = is_fresh | differs.reshape(self.num_envs, -1).any(1)

        # Fresh rows follow the youngest row, current_row[-1]; the next observations follow them.
        fresh_so_far = is_fresh.cumsum(0)
        row = torch.where(is_fresh, current_row[-1:] + fresh_so_far, current_row)
        next_row = current_row + (fresh_so_far[-1:] + self.num_envs)
        slots = torch.stack((row, next_row), 1) % self.capacity
        for key, rows in self._rows.items():
            # Where the root is not fresh, this writes what is there already.
            values = torch.stack((transition.get(key), after.get(key)), 1)
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
        self._list_places(step_slot, transition.get("active", None))
        self._next_step.add_(1)
        current_row.copy_(next_row)

        # At most 2 * num_envs rows were written, and from step to step the first row advances by
        # at least num_envs: no more than the two oldest steps can have lost a row.
        oldest_slots = self._oldest_steps % self._step_capacity
        oldest_rows = self._steps["first_row"].index_select(0, oldest_slots)
        has_lost_a_row = next_row[-1:] - oldest_rows >= self.capacity
        self._oldest_steps.add_(has_lost_a_row.sum())

    def _list_places(self, step_slot: Tensor, active: Tensor | None) -> None:
        """Append the places of a step's transitions to the list."""
        place = step_slot * self.num_envs + self._env_numbers
        if active is None:
            number = (self._next_transition + self._env_numbers) % self._num_places
            count: Tensor | int = self.num_envs
        else:
            is_transition = active.reshape(self.num_envs)
            so_far = is_transition.cumsum(0)
            number = (self._next_transition + so_far - 1) % self._num_places
            number = torch.where(is_transition, number, self._num_places)
            count = so_far[-1:]
        self._places.index_put_((number,), place)
        self._next_transition.add_(count)

    def _stored_transitions(self) -> tuple[Tensor, Tensor]:
        """Return the number of the oldest transition and how many there are, both `[1]`."""
        slot = self._oldest_steps[:1] % self._step_capacity
        first = self._steps["first_transition"].index_select(0, slot)
        return first, self._next_transition - first

    def _transitions(self, place: Tensor) -> TensorDict:
        """Return the transitions that begin at some places `[B]`."""
        stored = {name: self._steps[name].flatten(0, 1) for name in _SAMPLED_NAMES}
        ahead = self._look_ahead(place, stored) if self.n_step > 1 else None
        last = place if ahead is None else ahead.place
        slot = stored["slots"].index_select(0, place)[:, 0]
        next_slot = stored["slots"].index_select(0, last)[:, 1]

        batch = TensorDict({}, batch_size=[len(place)], device=self.device)
        for key, rows in self._rows.items():
            batch.set(key, rows.index_select(0, slot))
            batch.set(("next", *key), rows.index_select(0, next_slot))
        batch.set("action", stored["action"].index_select(0, place))
        terminated = stored["terminated"].index_select(0, last)
        truncated = stored["truncated"].index_select(0, last)
        batch.set(("next", "terminated"), terminated)
        batch.set(("next", "truncated"), truncated)
        batch.set(("next", "done"), terminated | truncated)
        if ahead is None:
            batch.set(("next", "reward"), stored["reward"].index_select(0, place))
        else:
            batch.set(("next", "reward"), ahead.reward)
            batch.set("steps_to_next_obs", ahead.steps)
        return batch

    def _look_ahead(self, place: Tensor, stored: dict[str, Tensor]) -> _Ahead:
        """Follow transitions `[B]` for up to `n_step` steps, but not over the end of an episode."""

        def goes_on_behind(place: Tensor) -> Tensor:
            terminated = stored["terminated"].index_select(0, place)
            return ~(terminated | stored["truncated"].index_select(0, place))

        newest_step = (self._next_step - 1) % self._step_capacity
        last = place
        reward = stored["reward"].index_select(0, place)
        steps = torch.ones_like(reward, dtype=torch.int64)
        goes_on = goes_on_behind(place)
        for step in range(1, self.n_step):
            following = (last + self.num_envs) % self._num_places
            # The next step begins with the very row that this one ended with, unless collection
            # was interrupted; and behind the newest step lie the oldest ones.
            slot = stored["slots"].index_select(0, following)[:, 0]
            next_slot = stored["slots"].index_select(0, last)[:, 1]
            follows = (slot == next_slot) & (last // self.num_envs != newest_step)
            goes_on = goes_on & follows.unsqueeze(1)
            # R = sum_k gamma^k r_k
            ahead = self.gamma**step * stored["reward"].index_select(0, following)
            reward = reward + torch.where(goes_on, ahead, 0.0)
            steps = steps + goes_on
            last = torch.where(goes_on.squeeze(1), following, last)
            goes_on = goes_on & goes_on_behind(last)
        return _Ahead(last, reward, steps)

    def _refuse_if_empty(self) -> None:
        if self._is_empty:
            raise RuntimeError("the replay buffer is empty: extend it before sampling")


class _Ahead(NamedTuple):
    """Where transitions `[B]` lead to in several steps.

    Attributes:
        place: `[B]`, of the last step.
        reward: `[B, 1]`, discounted sum on the way.
        steps: `[B, 1]` int64, how many they were.
    """

    place: Tensor
    reward: Tensor
    steps: Tensor
