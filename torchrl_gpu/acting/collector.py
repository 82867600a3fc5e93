"""Collector of transitions: steps a batched environment with a policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.checkpoints.contents import UNEXPECTED, check_like
from torchrl_gpu.devices.transfer import PackedTransfer
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment, EpisodesLostError
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.errors import ConfigurationError, WorkerError
from torchrl_gpu.execution.execution import EAGER, Execution, Policy
from torchrl_gpu.timers import NO_TIMERS, Timers

logger = logging.getLogger(__name__)


class Simulating:
    """Marks the steps and resets of environments, for a watchdog in another thread."""

    def __init__(self) -> None:
        self.env: Environment | None = None  # whose step or reset runs
        self.calls = 0  # number of steps and resets that have begun
        self.interrupted = 0  # number of the one that Ctrl-C ended, from 1; 0 for none

    def __call__(self, env: Environment) -> Simulating:
        """Begin a step or reset of an environment, which ends with the block."""
        self.calls += 1
        self.env = env
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.env = None
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.interrupted = self.calls


class Collector(Protocol):
    """Steps a batch of environments with a policy; `BatchCollector` describes each member."""

    env: Environment
    robots: Robots
    to_device: PackedTransfer
    to_host: PackedTransfer
    steps: int
    timers: Timers

    def step(self, policy: Policy) -> TensorDictBase:
        """Act once in every environment, and return the transition `[*B]`."""

    def begin(self, policy: Policy) -> None:
        """Act once in every environment, and begin the step, which `step` finishes."""

    def restart(self, rows: Tensor | None = None) -> None:
        """Start a new episode in some environments, bool `[*B]`, or in all."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `load_state_dict` restores, empty if there is none."""

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a state, and return whether the saved episodes continue."""


class BatchCollector:
    """Collects one transition of every environment of a batch at a time.

    `step` collects a transition. `begin` and `finish` are its two halves: an environment that can
    overlap (`Capabilities.can_overlap`) simulates while the program computes between them.

    An environment on the policy's device is stepped in place. An environment on another device
    costs two packed copies per step: one of the actions to the environment, and one of the
    observations, rewards and done flags back.

    Args:
        env: any TorchRL environment; `as_environment` converts it to an `Environment`.
        device: device of the policy and of the replay buffer.
        observation_keys: keys that the policy reads; `active` is added where the environment has
            it.
        execution: execution that calls the policy.
        simulating: marks of steps and resets for a watchdog; None without one.

    Attributes:
        env: the environment as an `Environment`.
        robots: the robots that the policy acts for.
        to_device: transfer from the environment to the policy, which counts its copies; none where
            both are on one device.
        to_host: transfer of the actions from the policy to the environment, likewise.
        steps: number of batched steps so far.
        timers: timers around simulation, copies and policy.
    """

    def __init__(
        self,
        env: EnvBase,
        device: torch.device,
        observation_keys: Sequence[NestedKey],
        execution: Execution = EAGER,
        simulating: Simulating | None = None,
    ) -> None:
        self.env = as_environment(env)
        self._simulating = simulating or Simulating()
        self.execution = execution
        self.device = device
        self.robots = Robots(self.env)
        observed = set(self.env.observation_spec.keys(include_nested=True))
        self.observation_keys = self.robots.keys(list(observation_keys))
        self.observation_keys += [key for key in self.robots.keys(["active"]) if key in observed]
        self._is_remote = self.env.device != device
        self.to_device = PackedTransfer(device)
        self.to_host = PackedTransfer(self.env.device)
        self.steps = 0
        self.timers: Timers = NO_TIMERS
        # The root that the next action belongs to, on the environment's device.
        self._root: TensorDictBase | None = None
        # Its observations on the policy's device; None before they are copied there.
        self._observation: TensorDictBase | None = None
        # The observations and actions of the step that has begun, on the policy's device.
        self._begun: TensorDictBase | None = None
        # Whether the root holds the actions of a step that had begun when the state was saved.
        self._has_acted = False

    def step(self, policy: Policy) -> TensorDictBase:
        """Act once in every environment, and start new episodes where episodes ended.

        A step that has begun is finished instead. The transition `[*B]` is that of `finish`. The
        policy is any function of a TensorDict that writes `action`, such as a TensorDict module.
        """
        if self._begun is None:
            self._act(policy)
        return self.finish()

    def begin(self, policy: Policy) -> None:
        """Act once in every environment, and begin the step, unless one has begun already."""
        if self._begun is None:
            root = self._act(policy)
            with self.timers("simulate"):
                self.env.begin_step(root)

    @torch.no_grad()
    def _act(self, policy: Policy) -> TensorDictBase:
        """Act in every environment, and return the root with the actions."""
        if self._root is None:
            with self.timers("simulate"), self._simulating(self.env):
                self._root = self.env.reset()
        current = self._root
        if self._is_remote:
            current = current.to(self.device) if self._observation is None else self._observation
        if not self._has_acted:
            with self.timers("act"):
                self.execution.act(policy, self.robots.view(current))
            if self._is_remote:
                with self.timers("copy"):
                    self._root.update(self.to_host(current.select(self.robots.action_key)))
        self._begun, self._has_acted = current, False
        return self._root

    @torch.no_grad()
    def finish(self) -> TensorDictBase:
        """Wait for the end of the step that has begun, and start new episodes where some ended.

        Returns:
            The transition `[*B]` on the policy's device in TorchRL's layout, valid until the next
            step ends. `next` holds the last observation of an episode that ended, not the first of
            the new episode.
        """
        assert self._begun is not None, "no step has begun"
        assert self._root is not None
        current, self._begun = self._begun, None
        self.steps += 1
        with self.timers("simulate"), self._simulating(self.env):
            transition, root = self.env.step_and_maybe_reset(self._root)
        if not self._is_remote:
            self._root = root
            return transition
        parts = {"next": transition.get("next"), "observation": root.select(*self.observation_keys)}
        with self.timers("copy"):
            arrived = self.to_device(TensorDict(parts, batch_size=self.env.batch_size))
        self._root, self._observation = root, arrived.get("observation")
        return current.set("next", arrived.get("next"))

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's state and, where `has_state`, the root of the next action.

        The root of a step that has begun includes its actions. If the open episodes cannot be
        saved, the state is empty.
        """
        if self._root is None:
            return {}
        try:
            state: dict[str, Any] = {"world": self.env.state_dict()}
        except EpisodesLostError as error:
            logger.warning("%s: the open episodes are not saved", error)
            return {}
        if self.env.capabilities.has_state:
            state["root"] = self._root.to_dict()
            state["has_acted"] = self._begun is not None or self._has_acted
        return state

    def restart(self, rows: Tensor | None = None) -> None:
        """Start a new episode in some environments, bool `[*B]`, or in all."""
        root = None
        if rows is not None and self._root is not None:
            mask = rows.unsqueeze(-1).to(self.env.device)
            root = self._root.copy().set("_reset", mask)
        with self._simulating(self.env):
            self._put(self.env.reset(root))

    def _put(self, root: TensorDictBase | None, has_acted: bool = False) -> None:
        """Continue from a root, which may hold the actions of its step."""
        self._root, self._has_acted = root, has_acted
        self._observation = self._begun = None

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore a state that `state_dict` returned.

        Returns:
            True if the saved episodes continue. False if `restart` or the next step will start new
            episodes, because they were not saved, or, as a warning then says, are lost. The caller
            then discards its statistics of the old episodes, such as returns.

        Raises:
            ConfigurationError: the state belongs to another environment.
        """
        self._put(None)
        if not state:
            return False
        # The state lacks the batch sizes of nested TensorDicts; the root of a reset has them.
        root = self.env.reset()
        try:
            if "is_part" in state:  # a remote collector saved it, which had a part of the batch
                self.env.load_progress(state["world"])
                return False
            # First, because the root of other settings has another shape.
            self.env.load_state_dict(state["world"])
            is_whole = self.env.capabilities.has_state and "root" in state
            saved = self._root_of(state, root) if is_whole else None
        except EpisodesLostError as error:
            logger.warning("%s: new episodes begin", error)
            return False
        except (ConfigurationError, WorkerError):
            raise
        except UNEXPECTED as error:
            raise ConfigurationError(
                "the saved state belongs to another environment, or to one with other transforms; "
                "resume the run in the script that built it"
            ) from error
        if saved is None:
            return False
        self._put(root.update(saved.to(self.env.device)), state["has_acted"])
        return True

    def _root_of(self, state: Mapping[str, Any], root: TensorDictBase) -> TensorDict:
        """Return the saved root, which has the entries of the root of a reset, and perhaps actions.

        That of another environment raises an exception of any kind.
        """
        check_like(state["has_acted"], False, "has_acted")
        saved = TensorDict(state["root"], batch_size=self.env.batch_size)
        expected = root.copy()
        if state["has_acted"]:
            expected.update(self.env.full_action_spec.zero())
        own = saved.select(*expected.keys(True, True))
        check_like(own.to_dict(), expected.to_dict(), "the root of the saved state")
        return saved
