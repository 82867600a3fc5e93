"""Environments with NumPy arrays in and out, and the spaces of Gymnasium."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec
from torchrl.envs import EnvBase

from torchrl_gpu.arguments import parameters_of, suggest
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.transfer import PackedTransfer
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.captions import picture_of, write_captions
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.environments.specs import name_of_key
from torchrl_gpu.errors import ConfigurationError

Observation: TypeAlias = Any  # an array, or arrays by name
RENDER_MODES = ["rgb_array"]
_HOST = torch.device("cpu")


class Results(NamedTuple):
    """Results of one step of all environments, arrays `[N, ...]`."""

    observation: dict[str, NDArray[Any]]  # after the step, the last ones of episodes that ended
    reward: NDArray[np.float32]  # sum over the robots, `[N]`
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    # `success`, bool `[N]`, if the environment has it; `rewards` `[N, R]`, with several robots.
    info: dict[str, NDArray[Any]]
    next_observation: dict[str, NDArray[Any]]  # those after the step, or the first of new episodes


class Arrays:
    """An environment with NumPy arrays in and out, which share no memory with it.

    A group of one robot is left out: its arrays are those of the environment. Arrays of several
    robots have a dimension for them; the observation `active` tells which of them still act, and
    the reward is the sum of theirs.

    Arguments and errors are those of `BatchedEnv`.

    Attributes:
        env: the environment.
        observation_space: space of the observations of one environment: a Box if it has only one
            observation, otherwise a Dict.
        action_space: space of the actions of one environment.
        metadata: metadata of Gymnasium.
    """

    def __init__(
        self,
        target: str | Callable[..., EnvBase],
        num_envs: int,
        discrete: bool,
        render_mode: str | None,
        settings: dict[str, Any],
    ) -> None:
        build: Any = pkgutil.resolve_name(target) if isinstance(target, str) else target
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigurationError(f"render_mode={render_mode}: use {RENDER_MODES[0]} or None")
        parameters = parameters_of(build)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = parameters.keys() - {"num_envs"}
        if "num_envs" in settings:
            raise ConfigurationError("num_envs: gymnasium.make_vec(id, num_envs=...) makes several")
        for name in settings:
            if name not in known and not takes_any:
                raise ConfigurationError(f"{name}: no such setting{suggest(name, known)}")
        if isinstance(device := settings.get("device"), str):
            settings = {**settings, "device": resolve_device(device)}
        if render_mode is not None and "mode" in known:
            settings = {"mode": "demo", **settings}
        env = as_environment(build(num_envs=num_envs, **settings))
        if "seed" not in settings:
            env.set_seeds(np.random.SeedSequence().generate_state(num_envs).tolist())
        self.env = with_action_table(env) if discrete else env
        self._robots = Robots(self.env)
        spec = self.env.observation_spec
        self._of_root = "success" in spec.keys()  # noqa: SIM118
        if self._robots.group is not None:
            spec = spec[self._robots.group]
        count = 1 if self._robots.group is None else spec.shape[1]
        # Where several robots act, an array has a dimension for them.
        self._several = count > 1
        self._keys = self._observed(spec)
        spaces = {name_of_key(key): self._space(spec[key]) for key in self._keys}
        self._is_alone = len(spaces) == 1 and not self._several
        alone = next(iter(spaces.values()))
        self.observation_space: Space[Any] = alone if self._is_alone else Dict(spaces)
        self._action_spec = self.env.full_action_spec[self._robots.action_key]
        self.action_space = self._space(self._action_spec)
        self._to_host = PackedTransfer(_HOST)
        self._reset_to_host = PackedTransfer(_HOST)
        seconds = self.env.capabilities.step_seconds
        rate = {} if seconds is None else {"render_fps": max(1, round(1 / seconds))}
        self.metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), **rate}

    def _observed(self, spec: Composite) -> list[Any]:
        outcomes = {name_of_key(key) for key in self.env.capabilities.outcome_keys}
        if self._several:
            outcomes.discard("active")
        keys = spec.keys(include_nested=True, leaves_only=True)
        return [key for key in keys if name_of_key(key) not in outcomes]

    def _space(self, leaf: TensorSpec) -> Space[Any]:
        """Return the space of one environment."""
        index = 0 if self._robots.group is None or self._several else (0, 0)
        shape = tuple(torch.empty(leaf.shape, device="meta")[index].shape)
        if leaf.dtype == torch.bool:
            return MultiBinary(shape)
        if isinstance(leaf, Bounded):
            low, high = (bound[index].cpu().numpy() for bound in (leaf.space.low, leaf.space.high))
            return Box(low, high, dtype=low.dtype.type)
        if not leaf.dtype.is_floating_point:
            return MultiDiscrete(np.full(shape, leaf.space.n)) if shape else Discrete(leaf.space.n)
        return Box(-np.inf, np.inf, shape, np.float32)

    def reset(self, seeds: Sequence[int] | None = None) -> dict[str, NDArray[Any]]:
        """Start new episodes in all environments, and return their first observations.

        Without a seed for each environment, the random sequences continue.
        """
        if seeds is not None:
            self.env.set_seeds(seeds)
        return _arrays(self._reset_to_host(self._selected(self.env.reset())))

    def step(self, action: Any, *, resets: bool) -> Results:
        """Step all environments by actions `[N, ...]`, and start new episodes if it `resets`.

        Raises:
            ConfigurationError: the actions have another shape, or a discrete one is not of the
                space. As in Gymnasium's environments, values of continuous ones are not checked.
        """
        spec, given = self._action_spec, np.asarray(action)
        shape = (*self.env.batch_size, *(self.action_space.shape or ()))
        if given.shape != shape:
            raise ConfigurationError(
                f"action={action}: its shape is {list(given.shape)}; use {list(shape)}, one action "
                "for each environment"
            )
        if isinstance(spec, Categorical) and not (
            given.dtype.kind in "iu" and ((given >= 0) & (given < spec.space.n)).all()
        ):
            raise ConfigurationError(
                f"action={action}: choose whole numbers from 0 to {spec.space.n - 1}"
            )
        taken = torch.as_tensor(given, dtype=spec.dtype, device=spec.device)
        root = TensorDict({}, self.env.batch_size, device=self.env.device)
        root.set(self._robots.action_key, taken.reshape(spec.shape))
        if resets:
            transition, after_reset = self.env.step_and_maybe_reset(root)
            after = transition.get("next")
        else:
            after = after_reset = self.env.step(root).get("next")
        reward = after.get(self._robots.reward_key).flatten(1)
        packed = {"after": self._selected(after)}
        if resets:
            packed["root"] = self._selected(after_reset)
        names = ("terminated", "truncated", *(["success"] if self._of_root else []))
        ends = {name: after.get(name).flatten(0) for name in names}
        tensors = {**packed, "reward": reward, **ends}
        host = self._to_host(TensorDict(tensors, self.env.batch_size, device=self.env.device))
        observation = _arrays(host.get("after"))
        info = {"success": _array(host.get("success"))} if self._of_root else {}
        rewards = _array(host.get("reward"))
        if self._several:
            info["rewards"] = rewards
        return Results(
            observation,
            rewards.sum(-1),
            _array(host.get("terminated")),
            _array(host.get("truncated")),
            info,
            _arrays(host.get("root")) if resets else observation,
        )

    def _selected(self, tensordict: TensorDictBase) -> TensorDict:
        """Return the observations of Gymnasium, by name."""
        view = self._robots.view(tensordict)
        leaves = {name_of_key(key): view.get(key) for key in self._keys}
        if self._robots.group is not None and not self._several:
            leaves = {name: leaf[:, 0] for name, leaf in leaves.items()}
        return TensorDict(leaves, self.env.batch_size, device=self.env.device)

    def given(self, observation: dict[str, NDArray[Any]], index: int | None = None) -> Observation:
        """Return observations as the space has them, of all environments or of one of them."""
        if index is not None:
            observation = {name: array[index] for name, array in observation.items()}
        return next(iter(observation.values())) if self._is_alone else observation

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return a picture `[H, W, 3]` of one environment, below its caption if it has one."""
        picture, caption = picture_of(self.env, index), self.env.caption(index)
        return write_captions(picture, [caption]) if caption else picture

    def close(self) -> None:
        """Close the environment; may be called again."""
        self.env.close(raise_if_closed=False)


def _arrays(tensordict: TensorDictBase) -> dict[str, NDArray[Any]]:
    """Return observations by name; masks are the integers of `MultiBinary`."""
    arrays = {str(name): _array(leaf) for name, leaf in tensordict.items()}
    return {name: a.view(np.int8) if a.dtype == np.bool_ else a for name, a in arrays.items()}


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.numpy().copy()
