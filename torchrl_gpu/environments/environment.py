"""Base class of environments: TorchRL's API and the additions of this library."""

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.scene import Scene
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes

DONE_NAMES: Final = ("done", "terminated", "truncated")

# Seconds of a step or reset beyond which a simulator hangs: far more than any takes.
STEP_TIMEOUT: Final = 120.0

Mode = Literal["train", "eval", "demo"]

# Names of entries, each with the names nested in it.
Names = dict[str, "Names"]


class EpisodesLostError(Exception):
    """The open episodes cannot be saved, or not be restored: a resumed run begins new ones.

    `load_state_dict` raises it once everything else is restored.
    """


class Environment(EnvBase):
    """Batched TorchRL environment, `batch_size=[num_envs]`, with a record of its capabilities.

    A subclass implements TorchRL's `_reset`, `_step` and `_set_seed`, and sets `capabilities` on
    the class; or, where they depend on its settings, overrides `capabilities_of` and sets the
    result in its constructor. To avoid bookkeeping in every step, `_step` must return all leaves of
    the observation, reward and done specs, in the shapes of the specs, as tensors that later steps
    do not overwrite.

    `torchrl_gpu.environments.adapter.as_environment` converts any other `EnvBase`.

    Attributes:
        capabilities: abilities of this environment.
        stall_seconds: seconds of a step or reset after which a training reports that the simulator
            does not answer; None for never, as where the environment watches its own processes.
        counters: names of the metrics that count events; the counts of several processes are added,
            all other metrics are averaged.
        processes: the processes of the run, each with as many environments, see `join`.
    """

    capabilities = Capabilities()
    stall_seconds: float | None = STEP_TIMEOUT
    counters: frozenset[str] = frozenset()
    processes: Processes = ONE_PROCESS
    _known_names: Names | None = None

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the `capabilities` of an environment before it is built.

        A run decides by them on overlap, and on the number of environments for training and
        evaluation. Attributes that only the built environment can determine have their defaults.

        Args:
            settings: constructor arguments by name, without those that the program passes (`mode`,
                `device`, `seed`).
            device: device of the policy.
        """
        return cls.capabilities

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings that exclude or need each other, before anything is built; here none.

        A constructor calls the method of its class by the name of the class, because that of a
        subclass may read settings that only the subclass has.

        Args:
            settings: constructor arguments by name, perhaps without those that the program passes
                and without components.

        Raises:
            ConfigurationError: settings do not fit together.
        """

    @cached_property  # unlike a property, it lets a subclass assign the attribute
    def num_envs(self) -> int:
        """Number of environments in the batch."""
        return int(self.batch_size[0])

    @property
    def _class_name(self) -> str:
        """Name of the class; a view has that of the environment beneath, see `name_of`."""
        return type(self).__name__

    @property
    def discrete_actions(self) -> Tensor:
        """Table of discrete actions `[A, action_dim]`, as the environment takes actions.

        Raises:
            ConfigurationError: the environment has none.
        """
        table = self.capabilities.discrete_actions
        if table is None:
            raise ConfigurationError(f"{name_of(self)} has no table of discrete actions")
        spec = self.full_action_spec[self.action_keys[0]]
        return torch.tensor(table, dtype=spec.dtype, device=self.device)

    def render(self, index: Any = 0) -> Tensor:
        """Render the current state.

        Args:
            index: index of the environment in the batch; or a list of indices, if
                `renders_several`.

        Returns:
            A picture `[H, W, 3]`, uint8.

        Raises:
            ConfigurationError: the environment cannot render, or has no such index.
        """
        raise ConfigurationError(f"{name_of(self)} cannot render")

    def _checked_index(self, index: Any) -> Any:
        """Return an argument of `render` as an `int`, or a list of them if `renders_several`."""
        several = self.capabilities.renders_several
        # Arrays and tensors without a dimension are iterable by their types alone.
        is_list = several and isinstance(index, Iterable) and getattr(index, "ndim", 1) > 0
        indices: list[int] = []
        with contextlib.suppress(TypeError):  # where one is not a whole number
            indices = [operator.index(each) for each in (index if is_list else [index])]
        if not indices or not all(0 <= each < self.num_envs for each in indices):
            raise ConfigurationError(
                f"render({index}): choose {'some' if several else 'one'} of the environments 0 to "
                f"{self.num_envs - 1}"
            )
        return indices if is_list else indices[0]

    def scene(self) -> Scene | None:
        """Return the bodies that a viewer draws in three dimensions in place of `render`.

        None in an environment without them.
        """
        return None

    def caption(self, index: int) -> str:
        """Return one line of text about the current state of one environment of the batch.

        A film writes it into the picture. In place of an empty line it writes the return of the
        episode so far.
        """
        return ""

    def reward_terms(self, index: int) -> Mapping[str, float]:
        """Return the terms of the reward of the last step in one environment of the batch, by name.

        A viewer draws them as curves. Names are the same in every step. The terms add up to the
        reward, with several robots to the mean of theirs. An environment whose reward is one number
        has none.
        """
        return {}

    def measurements(self, index: int) -> dict[str, float]:
        """Return physical quantities of the current state of one environment of the batch, by name.

        A name includes the unit, as in `distance [mm]`. A film reports their means over the last
        states of its episodes.
        """
        return {}

    def page(self, policy: str, about: str) -> str:
        """Return an HTML file in which a policy acts in a simulation of this environment.

        The file is complete: it needs neither a server nor a network.

        Args:
            policy: JavaScript that defines `act(observations, rows)`. It takes observations of some
                robots by name, each a flat array of all rows, and returns their greedy actions as
                one flat array.
            about: line of text about the policy.

        Raises:
            ConfigurationError: the environment has no such page.
        """
        raise ConfigurationError(f"{name_of(self)} has no page for a browser")

    def metrics(self) -> Mapping[str, float | Tensor]:
        """Return additional metrics to log, by name; called once per logging interval.

        Tensors `[]` on the device of the environment are read together with all other metrics, in
        one transfer.
        """
        return {}

    def join(self, processes: Processes) -> None:
        """Train with other processes, each with as many environments; called before the first step.

        An environment whose episodes depend on those before, as in a curriculum, then asks
        `processes`, so that this state stays the same in all of them. It may do so in each
        `_step` in the mode `train`, which all processes take alike; not in `begin_step`, resets and
        other modes, which one of them may have alone.
        """
        self.processes = processes

    def plan(self, steps: int, may_compile: bool) -> None:
        """Prepare for a training of so many batched steps, for instance by compiling them.

        Called before the first step, and before the next one of a resumed training. Does nothing
        here. `may_compile` is false for a run with `compile=off`.
        """

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Start a step without waiting; the next step of the same TensorDict returns its result.

        The program may do anything in between. A reset, another state or the step of another
        TensorDict undoes the step that has begun; `state_dict()` returns the state before it. An
        environment that cannot undo a step may discard its result in a reset, and refuse the step
        of another TensorDict with a RuntimeError.

        Does nothing in an environment without `can_overlap`: the step then takes its whole time.

        Args:
            tensordict: root of the step with the action, as for `step_and_maybe_reset`; must not
                change before that call.
        """

    def set_idle(self, mask: Tensor) -> None:
        """Declare that the episodes of some environments do not count, until the next full reset.

        The mask is bool `[num_envs]`, on the host. Does nothing where it saves no time to leave
        environments out. Otherwise their observations may stand still, and the other environments
        give the same transitions as before.
        """

    def progress(self) -> Mapping[str, Any]:
        """Return the state of a run that is not one of its episodes, such as a curriculum.

        It is part of `state_dict()`, and does not grow with the batch.
        """
        return {}

    def load_progress(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of a run that is not one of its episodes, see `progress`.

        A reset follows: new episodes begin. Does nothing in an environment without such a state.

        Args:
            state_dict: result of `progress()` or `state_dict()` of an environment of any batch
                size, by any number of processes.

        Raises:
            ConfigurationError: the state belongs to another environment.
        """

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seed each environment of the batch; the next full reset starts their first episodes.

        Seeds are at least 0. Unlike `set_seed`, it leaves the random numbers of PyTorch alone. In
        an environment with one generator for the batch, the episodes of each depend on all seeds.
        """
        self._set_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))

    def set_mode(self, mode: Mode) -> None:
        """Switch between training and evaluation; the next reset starts new episodes.

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

    def _spec_of_flag(self, *dimensions: int) -> Categorical:
        """Return the spec of flags, bool `[*B, *dimensions]`."""
        shape = (*self.batch_size, *dimensions)
        return Categorical(2, shape=shape, dtype=torch.bool, device=self.device)

    def _spec_of_dones(self) -> Composite:
        """Return the spec of `done`, `terminated` and `truncated`, each `[*B, 1]`."""
        flags = {name: self._spec_of_flag(1) for name in DONE_NAMES}
        return Composite(flags, shape=self.batch_size)

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


def base_of(env: EnvBase) -> EnvBase:
    """Return the environment beneath all TorchRL transforms."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def name_of(env: EnvBase) -> str:
    """Return the class name of the environment beneath all transforms and views."""
    base = base_of(env)
    return base._class_name if isinstance(base, Environment) else type(base).__name__


def reports_success(env: EnvBase) -> bool:
    """Return whether an environment reports the success of its episodes."""
    return "success" in env.observation_spec.keys()  # noqa: SIM118 (of TensorDict)


def group_of(env: EnvBase) -> str | None:
    """Return the key of an environment's group of robots; None for an environment without a group.

    Raises:
        ConfigurationError: the environment has several action keys, or none.
    """
    keys = env.action_keys
    if len(keys) != 1:
        names = ", ".join(key if isinstance(key, str) else ".".join(key) for key in keys)
        raise ConfigurationError(
            f"env: an agent has one action; {name_of(env)} has {names or 'no action_spec'}"
        )
    return None if isinstance(keys[0], str) else keys[0][0]


def mask_of(key: NestedKey) -> NestedKey:
    """Return the key of the mask that belongs to a set."""
    return f"{key}_mask" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_mask")
