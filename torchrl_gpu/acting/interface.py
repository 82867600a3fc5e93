"""Observations and actions of a policy, by which it can act without an environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from tensordict import NestedKey
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu.checkpoints.contents import check_count, check_like
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.specs import name_of_key
from torchrl_gpu.errors import ConfigurationError

# Largest observation of a file, many times that of a stack of images.
_MAX_SIZE = 2**26

# Observations as a user has them: arrays or tensors by name or key, perhaps nested, or one alone.
GivenObservation = Mapping[str, Any] | Mapping[NestedKey, Any] | ArrayLike | Tensor


@dataclass(frozen=True)
class PolicyInterface:
    """Observations and actions of a policy, as its environment defines them.

    Attributes:
        observation_spec: specs of the observations in their order, batch size `[num_envs]`, with
            bounds if they have any.
        action_spec: spec of the actions, bounded and continuous or discrete.
        action_table: continuous actions `[A, action_dim]` whose row numbers are the actions of an
            agent with discrete actions; None in an environment without an action table.
        frame_stacks: number of frames of each observation that is a stack, by name.
        step_seconds: time between two actions in seconds; None if unknown.
        units: units of observations and of `action`, by name; those without a unit are left out.
        action_range: lowest and highest values `[2, action_dim]` that the actions -1 and 1, also
            those of the table, stand for in the simulator; None if it takes them as they are.
    """

    observation_spec: Composite
    action_spec: TensorSpec
    action_table: Tensor | None = None
    frame_stacks: Mapping[str, int] = field(default_factory=dict)
    step_seconds: float | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    action_range: Tensor | None = None

    @classmethod
    def of(
        cls, observation_spec: Composite, action_spec: TensorSpec, capabilities: Capabilities
    ) -> PolicyInterface:
        """Return the interface of a policy in an environment."""
        table, action_range = capabilities.action_table, capabilities.action_range
        return cls(
            observation_spec,
            action_spec,
            None if table is None else torch.tensor(table),
            {name_of_key(key): frames for key, frames in capabilities.frame_stacks.items()},
            capabilities.step_seconds,
            {name_of_key(key): unit for key, unit in capabilities.units.items()},
            None if action_range is None else torch.tensor(action_range, dtype=torch.float32),
        )

    @property
    def leaves(self) -> dict[str, TensorSpec]:
        """Specs of the observations by name: the key, or the parts of a nested key with dots."""
        leaves = self.observation_spec.items(include_nested=True, leaves_only=True)
        return {name_of_key(key): leaf for key, leaf in leaves}

    def shapes(self) -> dict[str, str]:
        """Return shape and dtype of every observation and of the action, by name."""
        return {
            name: f"{list(leaf.shape[1:])} {_name_of_dtype(leaf.dtype)}"
            for name, leaf in {**self.leaves, "action": self.action_spec}.items()
        }

    def read(self, observation: GivenObservation, device: torch.device) -> dict[NestedKey, Tensor]:
        """Return the observations that a policy reads, checked, by their key.

        Args:
            observation: NumPy arrays or tensors by name or key, in nested dicts or a TensorDict
                too; or the array or tensor alone, of a policy with one observation. All have the
                same leading batch dimensions, or none.
            device: device of the policy.

        Raises:
            ConfigurationError: an observation is missing, unknown, not a tensor of numbers, or has
                another shape or dtype, or an array holds NaN or infinity. Tensors are not
                tested, which would wait for their device.
        """
        specs = dict(self.observation_spec.items(include_nested=True, leaves_only=True))
        leaves = {name_of_key(key): leaf for key, leaf in specs.items()}
        names = ", ".join(leaves)
        if not isinstance(observation, Mapping):
            if len(leaves) > 1:
                raise ConfigurationError(
                    f"observation: this policy reads several, by name: {names}"
                )
            observation = dict.fromkeys(leaves, observation)
        given = by_name(observation)
        if given.keys() != leaves.keys():
            raise ConfigurationError(
                f"observation: this policy reads {names}, not {', '.join(given) or 'nothing'}"
            )
        tensors = [_checked(name, given[name], leaf) for name, leaf in leaves.items()]
        pairs = zip(tensors, leaves.values(), strict=True)
        batches = {tensor.shape[: tensor.dim() - len(leaf.shape) + 1] for tensor, leaf in pairs}
        if len(batches) > 1:
            found = ", ".join(str(list(batch)) for batch in sorted(batches))
            raise ConfigurationError(f"observation: the batch sizes differ: {found}")
        return {key: tensor.to(device) for key, tensor in zip(specs, tensors, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """Return the interface as plain values and tensors."""
        return {
            "observations": _state_of(self.observation_spec),
            "action": _state_of(self.action_spec),
            "action_table": self.action_table,
            "frame_stacks": dict(self.frame_stacks),
            "step_seconds": self.step_seconds,
            "units": dict(self.units),
            "action_range": self.action_range,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PolicyInterface:
        """Return the interface, batch size `[1]`, whose `state_dict` is given.

        Raises:
            ValueError: it is not such a state; an error of another kind says so, too.
        """
        spec, action_spec = _spec_of(state["observations"]), _spec_of(state["action"])
        if not isinstance(spec, Composite) or isinstance(action_spec, Composite):
            raise ValueError("observations have names, and an action has none")
        others = ("action_table", "frame_stacks", "step_seconds", "units", "action_range")
        table, stacks, seconds, units, action_range = (state[name] for name in others)
        if table is not None:
            # Numbers of choices, or actions.
            dtype = torch.int64 if table.dtype == torch.int64 else torch.float32
            expected = torch.empty(action_spec.space.n, table.shape[1], dtype=dtype)
            check_like(table, expected, "action_table")
        if action_range is not None:
            size = table.shape[1] if table is not None else action_spec.shape[-1]
            check_like(action_range, torch.empty(2, size), "action_range")
        check_like(seconds, None if seconds is None else 0.0, "step_seconds")
        check_like(stacks, dict.fromkeys(stacks, 1), "frame_stacks")
        check_like(units, dict.fromkeys(units, ""), "units")
        return cls(spec, action_spec, table, stacks, seconds, units, action_range)


class SimulatorAction(nn.Module):
    """Maps the actions of a policy to those that the simulator takes, and back.

    Table and range of the actions are those of the policy's interface.
    """

    table: Tensor | None
    action_range: Tensor | None

    def __init__(self, interface: PolicyInterface) -> None:
        super().__init__()
        self.register_buffer("table", interface.action_table)
        self.register_buffer("action_range", interface.action_range)

    def forward(self, action: Tensor) -> Tensor:
        """Map actions `[*B, action_dim]` or row numbers `[*B]` to values `[*B, action_dim]`.

        Row numbers in an environment without an action table stay as they are.
        """
        if self.table is not None:
            action = self.table[action]
        if self.action_range is None:
            return action
        low, high = self.action_range
        return torch.clamp(action * (high / 2 - low / 2) + (high / 2 + low / 2), low, high)

    def inverse(self, values: Tensor) -> Tensor:
        """Map results of `forward` back to actions or row numbers."""
        if self.action_range is not None:
            low, high = self.action_range
            half = high / 2 - low / 2
            # A component whose bounds are equal, such as a locked joint, becomes 0.
            values = (values - (high / 2 + low / 2)) / (half + (half == 0))
        if self.table is None:
            return values
        return (values.unsqueeze(-2) - self.table).abs().sum(dim=-1).argmin(dim=-1)


def by_name(observation: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return observations by name: the parts of a key, and of nested mappings, joined by dots."""
    named: dict[str, Any] = {}
    for key, value in observation.items():
        name = prefix + (".".join(map(str, key)) if isinstance(key, tuple) else str(key))
        named |= by_name(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return named


def _name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _checked(name: str, given: Any, leaf: TensorSpec) -> Tensor:
    """Return an observation as a tensor of the dtype of its spec, on its own device or the host."""
    is_tensor = isinstance(given, Tensor)
    try:
        # Torch has neither negative strides nor read-only memory: such arrays are copied.
        array = given if is_tensor else np.require(given, requirements=["C", "W"])
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        kind = type(given).__name__
        raise ConfigurationError(
            f'observation "{name}" has to be an array or tensor of numbers, not {kind}'
        ) from error
    shape = leaf.shape[1:]
    if tensor.shape[max(0, tensor.dim() - len(shape)) :] != shape:
        raise ConfigurationError(
            f'observation "{name}" has shape {list(tensor.shape)}; it has to end with {list(shape)}'
        )
    is_real = leaf.dtype.is_floating_point and not tensor.is_complex()
    if not is_real and tensor.dtype != leaf.dtype:
        raise ConfigurationError(
            f'observation "{name}" has dtype {_name_of_dtype(tensor.dtype)}; it has to be '
            f"{_name_of_dtype(leaf.dtype)}"
        )
    # Not every device has float64, the dtype of most NumPy arrays.
    tensor = tensor.to(leaf.dtype)
    if not is_tensor and not tensor.isfinite().all():
        raise ConfigurationError(f'observation "{name}" holds NaN or infinity')
    return tensor


def _state_of(leaf: TensorSpec) -> dict[str, Any]:
    """Return shape, dtype and range of every leaf by name, without its batch dimension."""
    if isinstance(leaf, Composite):
        return {name: _state_of(entry) for name, entry in leaf.items()}
    shape = leaf.shape[1:]
    state: dict[str, Any] = {"shape": list(shape), "dtype": _name_of_dtype(leaf.dtype)}
    if isinstance(leaf, Bounded):
        for side in ("low", "high"):
            bound = getattr(leaf.space, side)[0]
            is_same = bool((bound == bound.flatten()[0]).all())
            state[side] = bound.flatten()[:1] if is_same else bound
    elif isinstance(leaf, Categorical) and not isinstance(leaf, Binary):
        state["choices"] = int(leaf.space.n)
    return state


def _spec_of(state: Mapping[str, Any]) -> TensorSpec:
    """Return the spec, batch size `[1]`, whose `_state_of` is given."""
    if "shape" not in state:  # specs refuse an observation of this name
        return Composite({name: _spec_of(each) for name, each in state.items()}, shape=(1,))
    shape, dtype = (1, *state["shape"]), vars(torch)[state["dtype"]]  # `getattr` could import
    if not isinstance(dtype, torch.dtype) or not 1 <= math.prod(shape) <= _MAX_SIZE:
        raise ValueError("an observation or action of this shape and dtype is not possible")
    if "low" in state:
        low, high = (state[side].expand(shape) for side in ("low", "high"))
        if not (low <= high).all():
            raise ValueError("the bounds of an observation or action are not in order")
        return Bounded(low, high, shape, dtype=dtype)
    if "choices" in state:
        check_count(state["choices"], "choices", low=1)
        return Categorical(state["choices"], shape, dtype=dtype)
    return Unbounded(shape, dtype=dtype)
