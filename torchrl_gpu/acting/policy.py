"""Batched policy wrapper: actor, exploration and action bounds as one TensorDict module."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.acting.exploration import Exploration
from torchrl_gpu.environments.specs import action_bounds, action_kind, name_of_key
from torchrl_gpu.errors import ConfigurationError

# Observations `[*B, ...]` by their key in the observation spec: a tuple for a nested observation. A
# TensorDict is read in the same way.
Observations = Mapping[NestedKey, Tensor]


class Actor(Protocol):
    """Module that maps plain tensors to actions; `PolicyWrapper` wraps it."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return the actions for observations `[*B, ...]`, greedy ones if deterministic.

        The result depends on these tensors, parameters and random draws alone; greedy actions draw
        none.

        Returns:
            Continuous actions `[*B, action_dim]` in [-1, 1], or discrete actions `[*B]` int64.
        """


class PolicyWrapper(TensorDictModuleBase):
    """Batched policy: reads a TensorDict of observations and adds `action` to it.

    The policy explores in train mode (`policy.train()`) and is greedy in eval mode
    (`policy.eval()`), regardless of TorchRL's global exploration type. Observations may have any
    number of leading batch dimensions. No value is read back to the host.

    Args:
        actor: network that computes actions, see `Actor`.
        observation_spec: spec of the observations that the actor reads.
        action_spec: spec of the actions: bounded and continuous `[*B, action_dim]`, where actions
            in [-1, 1] are mapped onto the bounds; or discrete `[*B]`.
        exploration: makes actions explore in train mode; None for an actor that explores by itself.

    Attributes:
        frames: number of environment steps taken in train mode so far, int64 `[]`, by which
            schedules advance; the first batch dimension counts environments.
        num_processes: number of processes that take as many steps each, see `Processes`.

    Raises:
        ConfigurationError: the action space is neither bounded and continuous nor discrete.
    """

    frames: Tensor
    num_processes: int = 1
    action_center: Tensor
    action_half_range: Tensor

    def __init__(
        self,
        actor: Actor,
        observation_spec: Composite,
        action_spec: TensorSpec,
        exploration: Exploration | None = None,
    ) -> None:
        super().__init__()
        self.is_continuous = action_kind(action_spec) == "continuous"
        self.actor = actor
        self.exploration = exploration
        self.in_keys = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self.out_keys = ["action"]
        # Number of dimensions of one observation, without those of the batch.
        self._row_ndim = observation_spec[self.in_keys[0]].ndim - observation_spec.ndim
        self.register_buffer("frames", torch.zeros((), dtype=torch.int64))
        self._has_unit_bounds = True
        if self.is_continuous:
            center, half_range = _middle(*action_bounds(action_spec))
            self.register_buffer("action_center", center)
            self.register_buffer("action_half_range", half_range)
            self._find_units()
            self.register_load_state_dict_post_hook(PolicyWrapper._find_units)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action`: `[*B, action_dim]` within the bounds, or discrete `[*B]` int64.

        Raises:
            ConfigurationError: an observation is missing, or the actor returns no such action.
        """
        observations = {key: tensordict.get(key) for key in self.in_keys}
        if missing := [key for key, value in observations.items() if value is None]:
            raise ConfigurationError(
                f"observation: the policy reads {name_of_key(missing[0])}, which is missing; in an "
                "environment of several robots, act by SharedPolicy(policy, env)"
            )
        result = self.actor.act(observations, deterministic=not self.training)
        action = self._checked(result, observations[self.in_keys[0]])
        if self.training:
            if self.exploration is not None:
                action = self.exploration(action, self.frames)
            self.frames.add_(self.num_processes * next(iter(tensordict.batch_size), 1))
        return tensordict.set("action", self.to_bounds(action))

    def _checked(self, action: Any, observation: Tensor) -> Tensor:
        """Return actions for `observation`, float32 or int64; refuse any other result of an actor.

        A last layer may compute in half precision, and an index be int32.
        """
        batch = observation.shape[: observation.ndim - self._row_ndim]
        shape = (*batch, *self.action_center.shape) if self.is_continuous else batch
        dtype = torch.float32 if self.is_continuous else torch.int64
        found = type(action).__name__
        if isinstance(action, Tensor):
            if action.is_floating_point() == self.is_continuous and action.dtype != torch.bool:
                action = action.to(dtype)
            if action.shape == shape and action.dtype == dtype:
                return action
            found = f"{action.dtype} {list(action.shape)}"
        raise ConfigurationError(
            f"agent: {type(self.actor).__name__}.act has to return {dtype} {list(shape)}, "
            f"not {found}"
        )

    def to_bounds(self, action: Tensor) -> Tensor:
        """Map actions in [-1, 1] onto the bounds; return discrete ones as they are."""
        if self._has_unit_bounds:
            return action
        return torch.addcmul(self.action_center, self.action_half_range, action)

    def from_bounds(self, action: Tensor) -> Tensor:
        """Map actions within the bounds onto [-1, 1]; return discrete ones as they are."""
        if self._has_unit_bounds:
            return action
        # A component whose bounds are equal, such as a locked joint, becomes 0.
        half_range = self.action_half_range
        return (action - self.action_center) / (half_range + (half_range == 0.0))

    def _find_units(self, _: object = None) -> None:
        """Find whether the bounds are -1 and 1; also called when a state has been loaded."""
        is_unit = (self.action_center == 0.0) & (self.action_half_range == 1.0)
        self._has_unit_bounds = bool(is_unit.all())


def _middle(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return center and half range of bounds, such that their sum and difference lie within."""
    lowest, highest = low.cpu(), high.cpu()  # DirectML lacks `nextafter`
    center = (highest + lowest) / 2
    half_range = torch.minimum(highest - center, center - lowest)
    while (beyond := (center + half_range > highest) | (center - half_range < lowest)).any():
        smaller = half_range.nextafter(torch.zeros_like(half_range))
        half_range = torch.where(beyond, smaller, half_range)
    return center.to(low.device), half_range.to(low.device)
