"""Replay on the device: every observation stored once, sampled without reading anything back."""

from __future__ import annotations

import bisect
import logging
import math
from typing import Annotated

import psutil
import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.arguments import checked
from torchrl_gpu.errors import ConfigurationError

_logger = logging.getLogger(__name__)

Key = tuple[str, ...]
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]

# Of a step: the slots of the root and the next observation, and what else a transition holds.
_SAMPLED_NAMES = ("slots", "action", "reward", "terminated", "truncated")
# And the number of the oldest row that the step may refer to.
_STEP_NAMES = (*_SAMPLED_NAMES, "first_row")

# Draws stay below 2**31, the largest range that every backend's generator covers.
_DRAW_RANGE = 2**31 - 1

# A replay that fills the device leaves no room for what learns from it.
_USABLE_SHARE_OF_FREE_MEMORY = 0.9


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
    the newest ones. Transition `t * num_envs + e` is the one of environment `e` in step `t`, and
    its successor in the same environment is `num_envs` further on.

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
    ) -> None:
        _check_memory(capacity, observation_spec, action_spec, num_envs, device)
        self.capacity = capacity
        self.num_envs = num_envs
        self.device = device
        self._tensors = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in _layout(
                capacity, observation_spec, action_spec, num_envs
            ).items()
        }
        self._rows = {key: self._tensors[_row_name(key)] for key in _leaves(observation_spec)}
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
        self._is_empty = True

    @staticmethod
    def bytes_needed(
        capacity: int, observation_spec: Composite, action_spec: TensorSpec, num_envs: int
    ) -> int:
        """Return the exact size in bytes of a buffer of these arguments, without building it.

        Args:
            capacity: observations to keep.
            observation_spec: the leaves to store, batch size [num_envs].
            action_spec: of the action, shape [num_envs, *action].
            num_envs: environments that act at the same time.
        """
        layout = _layout(capacity, observation_spec, action_spec, num_envs)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())

    def extend(self, transition: TensorDictBase) -> None:
        """Store one batched step, or several.

        Args:
            transition: in TorchRL's format and on the buffer's device, batch size [num_envs], or
                [num_envs, T] with time last, as collectors return it. Read are the observation
                leaves, `action`, and under `next` the observation leaves, `reward`, `terminated`
                and `truncated`, the last three of shape [..., 1]. Values are copied.

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

        Raises:
            RuntimeError: nothing has been stored yet.
        """
        if self._is_empty:
            raise RuntimeError("the replay buffer is empty: extend it before sampling")
        first = self._oldest_steps[:1] * self.num_envs
        stored = self._next_step * self.num_envs - first
        draw = torch.randint(_DRAW_RANGE, (batch_size,), device=self.device)
        index = (first + draw % stored) % (self._step_capacity * self.num_envs)
        drawn = {
            name: self._steps[name].flatten(0, 1).index_select(0, index) for name in _SAMPLED_NAMES
        }
        slot, next_slot = drawn["slots"].unbind(1)

        batch = TensorDict({}, batch_size=[batch_size], device=self.device)
        for key, rows in self._rows.items():
            batch.set(key, rows.index_select(0, slot))
            batch.set(("next", *key), rows.index_select(0, next_slot))
        batch.set("action", drawn["action"])
        for name in ("reward", "terminated", "truncated"):
            batch.set(("next", name), drawn[name])
        batch.set(("next", "done"), drawn["terminated"] | drawn["truncated"])
        return batch

    def __len__(self) -> int:
        """Return how many transitions can be sampled. Reads the device: not for the hot path."""
        return int(self._next_step - self._oldest_steps[0]) * self.num_envs

    def state_dict(self) -> dict[str, Tensor]:
        """Return what has been written, by name. Reads the device: not for the hot path.

        The tensors are views of the buffer: save or clone them before it is extended again.
        """
        written = {"rows": int(self._current_row[-1]) + 1, "steps": int(self._next_step)}
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
        ):
            self._steps[name].index_put_((step_slot,), value)
        self._next_step.add_(1)
        current_row.copy_(next_row)

        # At most 2 * num_envs rows were written, and from step to step the first row advances by
        # at least num_envs: no more than the two oldest steps can have lost a row.
        oldest_slots = self._oldest_steps % self._step_capacity
        oldest_rows = self._steps["first_row"].index_select(0, oldest_slots)
        has_lost_a_row = next_row[-1:] - oldest_rows >= self.capacity
        self._oldest_steps.add_(has_lost_a_row.sum())


def _layout(
    capacity: int, observation_spec: Composite, action_spec: TensorSpec, num_envs: int
) -> Layout:
    """Return shape and dtype of every tensor of a buffer: rows, steps, and where they stand."""
    steps = capacity // num_envs
    layout: Layout = {
        _row_name(key): ((capacity, *spec.shape[1:]), spec.dtype)
        for key, spec in _leaves(observation_spec).items()
    }
    return layout | {
        "steps.slots": ((steps, num_envs, 2), torch.int64),
        "steps.action": ((steps, *action_spec.shape), action_spec.dtype),
        "steps.reward": ((steps, num_envs, 1), torch.float32),
        "steps.terminated": ((steps, num_envs, 1), torch.bool),
        "steps.truncated": ((steps, num_envs, 1), torch.bool),
        "steps.first_row": ((steps,), torch.int64),
        "current_row": ((num_envs,), torch.int64),
        "oldest_steps": ((2,), torch.int64),
        "next_step": ((1,), torch.int64),
        "capacity": ((1,), torch.int64),
    }


def _leaves(spec: Composite) -> dict[Key, TensorSpec]:
    """Return the leaves of a spec by key, each key a tuple."""
    items = spec.items(include_nested=True, leaves_only=True)
    return {(key,) if isinstance(key, str) else tuple(key): leaf for key, leaf in items}


def _row_name(key: Key) -> str:
    return ".".join(("rows", *key))


def _check_memory(
    capacity: int,
    observation_spec: Composite,
    action_spec: TensorSpec,
    num_envs: int,
    device: torch.device,
) -> None:
    """Say what the buffer will take; refuse what cannot work or does not fit."""
    least = 3 * num_envs
    if capacity < least:
        raise ConfigurationError(
            f"capacity={capacity}: a replay of {num_envs} environments needs at least {least}"
        )
    leaves = _leaves(observation_spec)
    if not leaves:
        raise ConfigurationError("observation_spec: there is no observation to store")
    for key, spec in {**leaves, ("action",): action_spec}.items():
        if spec.shape[:1] != (num_envs,):
            raise ConfigurationError(
                f"the spec of {'.'.join(key)} has shape {list(spec.shape)}; "
                f"it must begin with num_envs={num_envs}"
            )

    def needed(capacity: int) -> int:
        return ReplayBuffer.bytes_needed(capacity, observation_spec, action_spec, num_envs)

    size, free = needed(capacity), _free_bytes(device)
    _logger.info("replay of %d observations on %s: %s", capacity, device, _readable(size))
    usable = None if free is None else int(_USABLE_SHARE_OF_FREE_MEMORY * free)
    if usable is not None and size > usable:
        fitting = bisect.bisect_right(range(capacity), usable, key=needed) - 1
        advice = f"capacity={fitting} would fit" if fitting >= least else "none would fit"
        raise ConfigurationError(
            f"capacity={capacity}: the replay needs {_readable(size)} and {device} has "
            f"{_readable(usable)} to spare; {advice}"
        )


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, None where torch does not tell."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return None


def _readable(size: float) -> str:
    """Return a number of bytes as people say it: 1.4 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
