"""Base class of environments: the capabilities that this library uses besides TorchRL's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_gpu.environments.demand import Demand
from torchrl_gpu.errors import ConfigurationError

Mode = Literal["train", "eval", "demo"]

# Names of entries, each with the names nested in it.
Names = dict[str, "Names"]


class Environment(EnvBase):
    """Batched TorchRL environment, `batch_size=[num_envs]`, that declares its capabilities.

    A subclass implements TorchRL's `_reset`, `_step` and `_set_seed`. It sets those attributes
    below that differ from their defaults, on the class or in its constructor. To avoid bookkeeping
    in every step, `_step` must return all leaves of the observation, reward and done specs, in the
    shapes of the specs, as tensors that later steps do not overwrite.

    `torchrl_gpu.environments.adapter.as_environment` converts any other `EnvBase`.

    Attributes:
        discrete_actions: table of discrete actions `[A, action_dim]`, float, within the bounds of
            the continuous action; None if agents with discrete actions cannot act here.
        step_seconds: simulated time of one step in seconds; None if unknown.
        can_render: whether `render` returns a picture; for an environment with modes, whether it
            does in mode `demo`.
        renders_several: whether `render` also accepts a list of indices, and then draws these
            environments in the layout of `torchrl_gpu.environments.captions.grid`.
        has_state: whether `state_dict()` is the complete state, so that a restored environment
            continues its episodes exactly.
        outcome_keys: observation keys that describe a transition and that agents do not observe by
            default: `success`, bool `[*B, 1]`, true if the task is solved; `active`, bool
            `[*B, 1]`, false if the next step is no transition (as for a robot that has finished).
            In an environment with a group of robots, keys in the group.
        can_switch_mode: whether `set_mode` works, so that one instance serves training and
            evaluation.
        frame_stacks: number of frames of each observation that is a stack, by key; a replay then
            stores each frame once. The first dimension of such an observation holds its last frames
            one after the other, the newest one last: `[*B, frames * C, H, W]` for images. At the
            start of an episode all frames are the first one. In an environment with a group of
            robots, keys in the group.
        can_overlap: whether `begin_step` starts the simulation and returns at once, so that the
            program can compute while the environment simulates.
    """

    discrete_actions: Tensor | None = None
    step_seconds: float | None = None
    can_render: bool = False
    renders_several: bool = False
    has_state: bool = False
    outcome_keys: tuple[NestedKey, ...] = ("success", "active")
    can_switch_mode: bool = False
    frame_stacks: Mapping[NestedKey, int] = {}
    can_overlap: bool = False
    _known_names: Names | None = None

    def render(self, index: Any = 0) -> Tensor:
        """Render the current state.

        Args:
            index: index of the environment in the batch; or a list of indices, if
                `renders_several`.

        Returns:
            A picture `[H, W, 3]`, uint8.

        Raises:
            ConfigurationError: the environment cannot render.
        """
        raise ConfigurationError(f"{name_of(self)} cannot draw itself")

    def caption(self, index: int) -> str:
        """Return one line of text about the current state of one environment.

        A film writes it into the picture. In place of an empty line it writes the return of the
        episode so far.

        Args:
            index: index of the environment in the batch.
        """
        return ""

    def measurements(self, index: int) -> dict[str, float]:
        """Return physical quantities of the current state of one environment.

        A film reports their means over the last states of its episodes.

        Args:
            index: index of the environment in the batch.

        Returns:
            Values by name; a name includes the unit, as in `distance [mm]`.
        """
        return {}

    def metrics(self) -> Mapping[str, float | Tensor]:
        """Return additional metrics to log, by name; called once per logging interval.

        Tensors `[]` on the device of the environment are read together with all other metrics, in
        one transfer.
        """
        return {}

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Begin a step; the next step of the same TensorDict waits for its end.

        The program may do anything in between. A reset, another state or the step of another
        TensorDict undoes the step that has begun; `state_dict()` returns the state before it. An
        environment without `has_state` need not undo a step: it may discard its result in a reset,
        and refuse the step of another TensorDict with a RuntimeError.

        Does nothing in an environment without `can_overlap`: the step then takes its whole time.

        Args:
            tensordict: root of the step with the action, as for `step_and_maybe_reset`; must not
                change before that call.
        """

    @classmethod
    def overlaps(cls, settings: Mapping[str, Any]) -> bool:
        """Return `can_overlap` of an environment with these settings, before it is built.

        Args:
            settings: constructor arguments by name.
        """
        return cls.can_overlap

    @classmethod
    def evaluation_limit(cls, settings: Mapping[str, Any]) -> int | None:
        """Return the largest number of environments that an evaluation builds by default.

        Args:
            settings: constructor arguments of the training environment, by name.

        Returns:
            Number of environments; None for no limit. An environment that needs one process per
            copy, for instance, returns the number of the training environment.
        """
        return None

    @classmethod
    def demand(cls, settings: Mapping[str, Any], device: torch.device) -> Demand | None:
        """Return the demand of a batch on the machine, by which `env.num_envs=auto` is chosen.

        Args:
            settings: constructor arguments by name.
            device: device of the policy.

        Returns:
            The demand; None if it is unknown, so that `auto` stands for the default.
        """
        return None

    def set_mode(self, mode: Mode) -> None:
        """Switch between training and evaluation; the next reset starts new episodes.

        Args:
            mode: `train`, `eval` or `demo`.

        Raises:
            ConfigurationError: the environment cannot switch its mode.
        """
        raise ConfigurationError(f"{name_of(self)} cannot switch to mode={mode}")

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        # TorchRL's implementation carries over keys that the environment does not know, such as a
        # recurrent state, but its bookkeeping takes longer than a step of eight CartPoles.
        if not self._knows(tensordict):
            return super()._step_and_maybe_reset(tensordict)
        tensordict.set("next", self._step(tensordict))
        return tensordict, self._root_after(tensordict.get("next"))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        """Start new episodes where the step ended one, and return the root of the next step.

        Subclasses override this method where TorchRL's `maybe_reset` is slow; `maybe_reset` must
        then give the same result.

        Args:
            after: return value of `_step`; must not be modified.

        Returns:
            Observations and done flags `[*B]`, which may share memory with `after`.
        """
        return self.maybe_reset(after.exclude(*self.reward_keys))

    def _batch(self, tensors: dict[str, Any], *dimensions: int) -> TensorDict:
        """Return tensors on the device, each `[*B, *dimensions, ...]`, as one TensorDict.

        The shapes are not checked: the checks of the public constructor take as long as a step of
        eight CartPoles.
        """
        batch_size = self.batch_size
        if dimensions:
            batch_size = torch.Size((*batch_size, *dimensions))
        return TensorDict._new_unsafe(tensors, batch_size=batch_size, device=self.device)

    def _knows(self, tensordict: TensorDictBase, names: Names | None = None) -> bool:
        """Return whether a TensorDict is on the device and has no keys except `names`.

        Args:
            tensordict: root of a step, or an entry of it.
            names: names to compare with; None for all keys of the specs.
        """
        if tensordict.device != self.device:
            return False
        names = names or self._known_names or self._find_known_names()
        for name in tensordict.keys():  # noqa: SIM118
            nested = names.get(name)
            if nested is None or (nested and not self._knows(tensordict.get(name), nested)):
                return False
        return True

    def _find_known_names(self) -> Names:
        self._known_names = {"next": {}}
        specs = (self.observation_spec, self.full_done_spec, self.full_reward_spec)
        for spec in (*specs, self.full_action_spec):
            for key in spec.keys(include_nested=True):
                names = self._known_names
                for name in (key,) if isinstance(key, str) else key:
                    names = names.setdefault(name, {})
        return self._known_names


class EnvironmentView(Environment):
    """Base of wrappers, which declare the same capabilities as the wrapped environment.

    Args:
        env: environment to wrap.
        batch_size: batch size of the view.
        device: device of the view.
    """

    def __init__(self, env: EnvBase, batch_size: tuple[int, ...], device: Any) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.env = env
        base = base_of(env)
        self._declared: Environment | None = base if isinstance(base, Environment) else None
        if self._declared is not None:
            self.discrete_actions = self._declared.discrete_actions
            self.step_seconds = self._declared.step_seconds
            self.can_render = self._declared.can_render
            self.renders_several = self._declared.renders_several
            self.has_state = self._declared.has_state
            self.outcome_keys = self._declared.outcome_keys
            self.can_switch_mode = self._declared.can_switch_mode

    def render(self, index: Any = 0) -> Tensor:
        """Render the wrapped environment."""
        return self._declares("draw itself").render(index)

    def caption(self, index: int) -> str:
        """Return the caption of the wrapped environment."""
        return "" if self._declared is None else self._declared.caption(index)

    def measurements(self, index: int) -> dict[str, float]:
        """Return the measurements of the wrapped environment."""
        return {} if self._declared is None else self._declared.measurements(index)

    def metrics(self) -> Mapping[str, float | Tensor]:
        """Return the metrics of the wrapped environment."""
        return {} if self._declared is None else self._declared.metrics()

    def set_mode(self, mode: Mode) -> None:
        """Switch the mode of the wrapped environment."""
        self._declares(f"switch to mode={mode}").set_mode(mode)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state of the wrapped environment."""
        return dict(self.env.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Restore the wrapped environment from `state_dict()`."""
        self.env.load_state_dict(state_dict)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the wrapped environment; repeated calls have no effect."""
        self.env.close(raise_if_closed=False)
        self.is_closed = True

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)

    def _declares(self, ability: str) -> Environment:
        if self._declared is None:
            raise ConfigurationError(f"{name_of(self)} cannot {ability}")
        return self._declared


def base_of(env: EnvBase) -> EnvBase:
    """Return the environment beneath all TorchRL transforms."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def name_of(env: EnvBase) -> str:
    """Return the class name of the environment beneath all transforms and views."""
    while isinstance(env, (TransformedEnv, EnvironmentView)):
        env = env.base_env if isinstance(env, TransformedEnv) else env.env
    return type(env).__name__


def group_of(env: EnvBase) -> str | None:
    """Return the key of an environment's group of robots; None for an environment without a group.

    Raises:
        ConfigurationError: the environment has several action keys.
    """
    keys = env.action_keys
    if len(keys) != 1:
        names = ", ".join(key if isinstance(key, str) else ".".join(key) for key in keys)
        raise ConfigurationError(f"env: an agent has one action; this environment needs {names}")
    return None if isinstance(keys[0], str) else keys[0][0]


def mask_of(key: NestedKey) -> NestedKey:
    """Return the key of the mask that belongs to a set."""
    return f"{key}_mask" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_mask")
