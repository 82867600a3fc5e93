"""The contract of an environment: all that is asked of one besides the methods of TorchRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_gpu.errors import ConfigurationError

Mode = Literal["train", "eval", "demo"]


class Environment(EnvBase):
    """A batched TorchRL environment, `batch_size=[num_envs]`, that says what it can do.

    A subclass sets the attributes below that differ from their defaults, on the class or in its
    constructor, and implements TorchRL's `_reset`, `_step` and `_set_seed`. So that a step costs no
    bookkeeping, `_step` has to return every leaf of the specs of observation, reward and done, in
    the shape of its spec and in memory of its own.

    Any other `EnvBase` takes part too: see `torchrl_gpu.environments.adapter.as_environment`.

    Attributes:
        discrete_actions: table of discrete actions `[A, action_dim]`, float, within the bounds of
            the continuous action; None: agents with discrete actions cannot act here.
        step_seconds: simulated seconds of one step; None: unknown.
        can_render: whether `render` draws; of an environment with modes, whether it does in the
            mode `demo`.
        renders_several: whether `render` takes a list of indices, too.
        has_state: whether `state_dict()` and `load_state_dict()` determine the whole future.
        outcome_keys: leaves of the observation that tell about a transition, and that no agent sees
            unless its user asks for them: `success`, bool `[*B, 1]`, whether the task is solved;
            `active`, bool `[*B, 1]`, whether the step from here is a transition (false for a robot
            that is out of the game). In an environment with a group of robots, keys in the group.
        can_switch_mode: whether `set_mode` works, so that one instance serves training and
            evaluation.
    """

    discrete_actions: Tensor | None = None
    step_seconds: float | None = None
    can_render: bool = False
    renders_several: bool = False
    has_state: bool = False
    outcome_keys: tuple[NestedKey, ...] = ("success", "active")
    can_switch_mode: bool = False

    def render(self, index: Any = 0) -> Tensor:
        """Draw the present state.

        Args:
            index: number of the environment in the batch; a list of them where `renders_several`.

        Returns:
            A picture `[H, W, 3]`, uint8.

        Raises:
            ConfigurationError: the environment cannot draw itself.
        """
        raise ConfigurationError(f"{name_of(self)} cannot draw itself")

    def metrics(self) -> dict[str, float]:
        """Return figures for the log besides rewards, by name; asked once per logging interval."""
        return {}

    @classmethod
    def evaluation_limit(cls, settings: Mapping[str, Any]) -> int | None:
        """Return the largest number of environments that an evaluation builds by itself.

        Args:
            settings: of this class, as training has them.

        Returns:
            None for any number. An environment whose copies each cost a process, for instance,
            returns the number that training has.
        """
        return None

    def set_mode(self, mode: Mode) -> None:
        """Switch between training and evaluation; new episodes begin with the next reset.

        Args:
            mode: as the constructor takes it.

        Raises:
            ConfigurationError: the environment cannot switch.
        """
        raise ConfigurationError(f"{name_of(self)} cannot switch to mode={mode}")

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        # TorchRL's own way carries keys over that the environment does not know, a recurrent state
        # for instance. Its bookkeeping takes longer than eight CartPoles.
        if tensordict.device != self.device or not self._known_keys.include(tensordict):
            return super()._step_and_maybe_reset(tensordict)
        return self._step_known(tensordict)

    def _step_known(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step a TensorDict that holds nothing but the environment's own keys."""
        tensordict.set("next", self._step(tensordict))
        return tensordict, self._root_after(tensordict.get("next"))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        """Begin new episodes where a step ended them, and return what to act upon next.

        Override it where TorchRL's `maybe_reset` is slow; `maybe_reset` has to do the same.

        Args:
            after: what `_step` returned; stays as it is.

        Returns:
            Observations and done keys `[*B]`, which may share memory with `after`.
        """
        return self.maybe_reset(after.exclude(*self.reward_keys))

    @property
    def _known_keys(self) -> _Keys:
        keys: _Keys | None = self.__dict__.get("_cached_known_keys")
        if keys is None:
            specs = (self.observation_spec, self.full_done_spec, self.full_reward_spec)
            keys = _Keys.of(*specs, self.full_action_spec)
            keys = keys._replace(names=keys.names | {"next"})
            self.__dict__["_cached_known_keys"] = keys
        return keys


class _Keys(NamedTuple):
    """The keys of a TensorDict, and those of the TensorDicts within it."""

    names: frozenset[str]
    nested: tuple[tuple[str, _Keys], ...]

    @classmethod
    def of(cls, *specs: Composite) -> _Keys:
        """Return the keys of several specs taken together."""
        nested: dict[str, list[Composite]] = {}
        for spec in specs:
            for name, entry in spec.items():
                if isinstance(entry, Composite):
                    nested.setdefault(name, []).append(entry)
        return cls(
            frozenset(name for spec in specs for name in spec.keys()),  # noqa: SIM118
            tuple((name, cls.of(*entries)) for name, entries in nested.items()),
        )

    def include(self, tensordict: TensorDictBase) -> bool:
        """Return whether a TensorDict has no other keys than these."""
        if not self.names.issuperset(tensordict.keys()):
            return False
        for name, keys in self.nested:
            entry = tensordict.get(name, None)
            if entry is not None and not keys.include(entry):
                return False
        return True


class EnvironmentView(Environment):
    """Another environment in a different form, which keeps what that one declares.

    Args:
        env: the environment within.
        batch_size: of the view.
        device: of the view.
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
        """Draw the environment within."""
        return self._declares("draw itself").render(index)

    def metrics(self) -> dict[str, float]:
        """Return the figures of the environment within."""
        return {} if self._declared is None else self._declared.metrics()

    def set_mode(self, mode: Mode) -> None:
        """Switch the environment within."""
        self._declares(f"switch to mode={mode}").set_mode(mode)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state of the environment within."""
        return dict(self.env.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Let the environment within go on from `state_dict()`."""
        self.env.load_state_dict(state_dict)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environment within; may be called again."""
        self.env.close(raise_if_closed=False)
        self.is_closed = True

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)

    def _declares(self, ability: str) -> Environment:
        if self._declared is None:
            raise ConfigurationError(f"{name_of(self)} cannot {ability}")
        return self._declared


def base_of(env: EnvBase) -> EnvBase:
    """Return the environment beneath all of TorchRL's transforms."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def name_of(env: EnvBase) -> str:
    """Return the name of the class of an environment, beneath all transforms and views."""
    while isinstance(env, (TransformedEnv, EnvironmentView)):
        env = env.base_env if isinstance(env, TransformedEnv) else env.env
    return type(env).__name__


def group_of(env: EnvBase) -> str | None:
    """Return the name of the group of robots that act in an environment; None where itself acts.

    Raises:
        ConfigurationError: more than one kind of action is asked for in a step.
    """
    keys = env.action_keys
    if len(keys) != 1:
        names = ", ".join(key if isinstance(key, str) else ".".join(key) for key in keys)
        raise ConfigurationError(f"env: one agent takes one action, this world asks for {names}")
    return None if isinstance(keys[0], str) else keys[0][0]


def mask_of(key: NestedKey) -> NestedKey:
    """Return the key of the mask of a set of objects."""
    return f"{key}_mask" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_mask")
