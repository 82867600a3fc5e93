"""NaN and infinity in the steps of a run: their source, entry, step and rows."""

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError

OnNonfinite = Literal["stop", "restart"]

_LISTED = 8  # rows that an error names


class NonfiniteError(ConfigurationError):
    """A number of a run is NaN or infinite."""


class FiniteWatch:
    """Watches the observations, actions and rewards of all steps, without reading them.

    Args:
        observation_keys: keys that the agent observes.
        rows: number R of rows of a step, one for each environment or robot.
        device: device of the steps.

    Attributes:
        rows: number R of rows.
        failed: whether an observation or the reward of each row was NaN or infinite in the newest
            step, bool `[R]`.
        failed_before: the same for the step before.
    """

    def __init__(
        self, observation_keys: Sequence[NestedKey], rows: int, device: torch.device
    ) -> None:
        after = [unravel_key(("next", key)) for key in observation_keys]
        # In the order in which a step computes them: the first one that is not finite is the cause.
        self._keys: list[NestedKey] = ["action", *after, ("next", "reward")]
        self.rows = rows
        self.failed = self.failed_before = torch.zeros(rows, dtype=torch.bool, device=device)
        self._observed = observation_keys
        self._latest: TensorDictBase | None = None
        shape = (len(self._keys), rows)
        self._sums = torch.zeros(shape, device=device)
        self._weights: dict[int, Tensor] = {}  # column `[D, 1]` by D
        self._is_finite = torch.ones(shape, dtype=torch.bool, device=device)  # in all steps
        self._finite_steps = torch.zeros(shape, dtype=torch.int64, device=device)
        self._steps = 0

    def update(self, transition: TensorDictBase, counted: Tensor | None = None) -> None:
        """Watch one step.

        Args:
            transition: step `[R]` in TorchRL's layout.
            counted: rows to watch, bool `[R]`; None for all.
        """
        # A sum is finite only if all its numbers are, and computed faster than a test of each. With
        # these weights, that of up to 2**24 finite numbers does not overflow.
        for key, total in zip(self._keys, self._sums, strict=True):
            value = transition.get(key)
            if value.is_floating_point():
                numbers = value.float().flatten(1)
                if (size := numbers.shape[1]) not in self._weights:
                    self._weights[size] = numbers.new_full((size, 1), 2.0**-24)
                torch.mm(numbers, self._weights[size], out=total.unsqueeze(1))
        is_finite = self._sums.isfinite()
        if counted is not None:
            is_finite |= ~counted
        self._is_finite &= is_finite
        self._finite_steps += self._is_finite
        self._steps += 1
        self._latest = transition
        self.failed_before, self.failed = self.failed, ~is_finite[1:].all(0)

    def forgive(self, rows: Tensor) -> None:
        """Forget the observations and rewards of some rows, bool `[R]`; actions stay noted."""
        self._finite_steps[1:].masked_fill_(rows, self._steps)
        self._is_finite[1:] |= rows

    def is_finite(self) -> Tensor:
        """Return whether all numbers of all steps were finite, a bool `[]`."""
        return self._is_finite.all()

    def cause(self, step: int, where: str = "") -> str | None:
        """Return the first entry that was not finite; reads the device.

        Args:
            step: number of the newest step, from 1.
            where: text after the number of the step.

        Returns:
            Environment or agent, with entry, step and rows; None if all numbers were finite.
        """
        if self.is_finite():
            return None
        first = int(self._finite_steps.min())
        number = int((self._finite_steps == first).any(1).int().argmax())
        rows = (self._finite_steps[number] == first).nonzero()[:, 0].tolist()
        key = self._keys[number]
        if key == "action":  # perhaps of an observation that no step brought, but a reset
            key = next((name for name in self._observed if not self._shows(name, rows)), key)
        path = (key,) if isinstance(key, str) else key
        name = ".".join(path[1:] if path[0] == "next" else path)
        listed = ", ".join(map(str, rows[:_LISTED])) + (", ..." if len(rows) > _LISTED else "")
        return (
            f"{'agent' if key == 'action' else 'env'}: {name} was NaN or infinite in step "
            f"{step - self._steps + first + 1:,}{where}, rows {listed} of {self.rows}"
        )

    def _shows(self, key: NestedKey, rows: list[int]) -> bool:
        """Return whether the latest step began in some rows with finite observations."""
        assert self._latest is not None
        return bool(self._latest.get(key)[rows].isfinite().all())


def without(
    transition: TensorDictBase, rows: Tensor, observation_keys: Sequence[NestedKey]
) -> TensorDictBase:
    """Return a step of finite numbers in which some rows are not transitions.

    Their episodes end as by a time limit, with the observation before the step and reward 0.

    Args:
        transition: step `[R]` in TorchRL's layout.
        rows: rows to leave out, bool `[R]`.
        observation_keys: keys that the agent observes.
    """
    left_out = rows.unsqueeze(-1)
    own, after = transition.copy(), transition.get("next").copy()
    for key in (*observation_keys, "action"):
        value = own.get(key)
        masks = rows.view(-1, *(1 for _ in value.shape[1:]))
        value = torch.where(masks, value.nan_to_num(posinf=0.0, neginf=0.0), value)
        own.set(key, value)
        if key != "action":
            after.set(key, torch.where(masks, value, after.get(key)))
    after.set("reward", after.get("reward").masked_fill(left_out, 0.0))
    after.set("terminated", after.get("terminated") & ~left_out)
    for key in ("truncated", "done"):
        after.set(key, after.get(key) | left_out)
    active = own.get("active", torch.ones_like(left_out))
    return own.set("active", active & ~left_out).set("next", after)
