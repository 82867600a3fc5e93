"""Steps and resets of a vector environment, with one class for each autoreset mode.

In every mode, `step` returns the true last observation of an episode, and `restart` the first
observation of the next.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from envs.gym.observations import Observations
from envs.gym.processes import WatchedVectorEnv
from torchrl_gpu.environments.environment import DONE_NAMES, EpisodesLostError
from torchrl_gpu.environments.recording import announced, as_arrays, as_tensors
from torchrl_gpu.errors import ConfigurationError

Tensors = dict[str, Tensor]


class Episodes:
    """Episodes without autoreset: `restart` resets any environment at any time.

    Args:
        vector: environments to step.
        observations: conversion of their observations.
        seed: random seed of the first `begin`.
        success: entry of `info` that says whether the task is solved; None for none.

    Attributes:
        seed: random seed of the next `begin`; None to continue the random sequence.
        over: whether the last step ended the episode, bool `[num_envs]`.
    """

    def __init__(
        self,
        vector: VectorEnv,
        observations: Observations,
        seed: int | None,
        success: str | None,
    ) -> None:
        self.seed = seed
        self.over: NDArray[np.bool_] = np.zeros(vector.num_envs, np.bool_)
        self._vector = vector
        self._observations = observations
        self._success = success
        self._current: Tensors = {}
        # The result of a step that has begun, once `wait` has it.
        self._arrived: Any = None

    @property
    def started(self) -> bool:
        """Whether there are open episodes."""
        return bool(self._current)

    def begin(self) -> Tensors:
        """Start new episodes everywhere; return observations and flags, all false, by key."""
        batch, _ = self._vector.reset(seed=self.seed)
        self.seed = None
        self.over = np.zeros_like(self.over)
        self._current = self._observations.read(batch)
        return self._with_false_flags(self._current)

    def restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        """Start a new episode in chosen environments, bool `[num_envs]`; or in none.

        If all are chosen while some episodes are still running, this is `begin`.

        Returns:
            Observations of all environments as from `begin`.

        Raises:
            ConfigurationError: a chosen episode is still running, and the autoreset mode cannot
                reset it.
        """
        if chosen.all() and not self.over.all():
            return self.begin()
        if chosen.any():
            self._current = self._restart(chosen)
        return self._with_false_flags(self._current)

    def wait(self) -> None:
        """Wait for the step that has begun in the processes of an `AsyncVectorEnv`."""
        if self._arrived is None:
            self._arrived = self._vector.step_wait()

    def discard(self) -> None:
        """Wait for the step that has begun, and forget its result."""
        self.wait()
        self._arrived = None

    def step(self, action: NDArray | None) -> Tensors:
        """Step every environment.

        Args:
            action: batch of actions in the format of the vector environment; None to finish the
                step that has begun in the processes of an `AsyncVectorEnv`.

        Returns:
            Observations by key, the last one of an episode that has ended; and `reward` float32,
            `terminated`, `truncated`, `done` and, if it is read, `success` bool, each
            `[num_envs, 1]`.

        Raises:
            ConfigurationError: the info of the end of an episode lacks the entry of success, or
                the entry is not one bool or number.
        """
        if action is None:
            self.wait()
            result, self._arrived = self._arrived, None
        else:
            result = self._vector.step(action)
        batch, reward, terminated, truncated, info = result
        self.over = np.logical_or(terminated, truncated)
        before, self._current = self._current, self._observations_after_step(batch, info)
        if (lost := self._lost()).any():  # the episode has no later observation than before
            rows = torch.from_numpy(np.flatnonzero(lost))
            for key, x in self._current.items():
                self._current[key] = x.index_copy(0, rows, before[key][rows])
        return {
            **self._current,
            **self._successes(info),
            "reward": _column(reward, np.float32),
            "terminated": _column(terminated, np.bool_),
            "truncated": _column(truncated, np.bool_),
            "done": _column(self.over, np.bool_),
        }

    def _successes(self, info: Mapping[str, Any]) -> Tensors:
        """Return `success` bool `[num_envs, 1]`, if it is read."""
        if self._success is None:
            return {}
        last = info.get("final_info", info)  # with `same_step`, `info` is that of the next episode
        lacking = self.over & ~self._lost() & ~self._known(last, self._success)
        if lacking.any():
            there = [name for name in last if (self._known(last, name) & lacking).any()]
            names = ", ".join(name for name in there if not name.startswith("_"))
            raise ConfigurationError(
                f"env.success={self._success}: the info of the last step of an episode lacks this "
                f"entry; it has {names or 'none'}"
            )
        success = np.where(
            self.over, self._flag(last, self._success), self._flag(info, self._success)
        )
        return {"success": _column(success, np.bool_)}

    def _known(self, info: Mapping[str, Any], name: str) -> NDArray[np.bool_]:
        """Return the environments whose `info` has an entry, bool `[num_envs]`."""
        # Some vectorized code gives an entry without the mask of Gymnasium, for all environments.
        known = np.asarray(info.get(f"_{name}", name in info), np.bool_)
        return np.broadcast_to(known, self.over.shape)

    def _flag(self, info: Mapping[str, Any], name: str) -> NDArray[np.bool_]:
        """Return an entry of `info` as bool `[num_envs]`, false where it is missing."""
        known = self._known(info, name)
        if not known.any():
            return known
        try:
            values = np.asarray(info[name]).astype(np.float64).reshape(known.shape)
        except (TypeError, ValueError):
            values = np.full(known.shape, np.nan)
        if not np.isfinite(values[known]).all():
            raise ConfigurationError(
                f"env.success={name}: this entry of the info is not one bool or number"
            )
        return known & (values != 0)

    def _lost(self) -> NDArray[np.bool_]:
        """Return whether the last step lost the process of an environment, bool `[num_envs]`."""
        vector = self._vector
        return vector.lost if isinstance(vector, WatchedVectorEnv) else np.zeros_like(self.over)

    def state_dict(self, *, has_begun: bool) -> dict[str, Any]:
        """Return the state of all open episodes, for environments with a `Recorder`.

        If a step has begun, it is the state before that step.

        Raises:
            EpisodesLostError: the process of an environment is lost, whose episode the next step
                truncates.
        """
        if has_begun:
            self.wait()
        records = self._vector.get_attr("episode_before_step" if has_begun else "episode")
        if isinstance(self._vector, WatchedVectorEnv) and self._vector.owes_truncation:
            raise EpisodesLostError("a process of the environment was lost")
        return {
            "autoreset": self._vector.metadata["autoreset_mode"].name,
            "seed": self.seed,
            "over": torch.from_numpy(self.over),
            "current": self._current,
            "records": [as_tensors(record) for record in records],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the open episodes of `state_dict` again.

        Raises:
            EpisodesLostError: they do not come to the same observations and rewards, or the
                settings of the environment differ.
        """
        records, vector = state["records"], self._vector
        mode = vector.metadata["autoreset_mode"].name
        if len(records) != vector.num_envs or state["autoreset"] != mode:
            raise EpisodesLostError("the episodes were saved with another num_envs or autoreset")
        vector.set_attr("episode", [as_arrays(record) for record in records])
        is_watched = isinstance(vector, WatchedVectorEnv)
        patient = vector.without_timeout() if is_watched else nullcontext()
        with announced(records), patient:
            vector.reset()
        over, ended = state["over"].numpy(), np.array(vector.get_attr("owes_reset"))
        if not (all(vector.get_attr("repeated")) and self._ends(ended, over)):
            raise EpisodesLostError("the simulator does not repeat the saved episodes exactly")
        self.seed, self._current, self.over = state["seed"], dict(state["current"]), over

    def _ends(self, ended: NDArray[np.bool_], over: NDArray[np.bool_]) -> bool:
        """Return whether all repeated episodes that ended were over when saved."""
        return not (ended & ~over).any()

    def _with_false_flags(self, observations: Tensors) -> Tensors:
        false = np.zeros_like(self.over)
        flags = DONE_NAMES if self._success is None else (*DONE_NAMES, "success")
        return {**observations, **{key: _column(false, np.bool_) for key in flags}}

    def _observations_after_step(self, batch: Any, info: dict[str, Any]) -> Tensors:
        return self._observations.read(batch)

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        batch, _ = self._vector.reset(options={"reset_mask": chosen})
        return self._observations.read(batch)

    def _check_over(self, chosen: NDArray[np.bool_]) -> None:
        if (chosen & ~self.over).any():
            raise ConfigurationError(
                "the reset of a single environment in the middle of its episode needs "
                "autoreset=disabled"
            )


class SameStepEpisodes(Episodes):
    """Autoreset in the step that ends an episode; its info holds the last observation."""

    _first: Tensors

    def begin(self) -> Tensors:
        """Start a new episode in every environment: see `Episodes.begin`."""
        started = super().begin()
        self._first = self._current
        return started

    def state_dict(self, *, has_begun: bool) -> dict[str, Any]:
        """Return the state of all open episodes: see `Episodes.state_dict`."""
        return {**super().state_dict(has_begun=has_begun), "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the open episodes again: see `Episodes.load_state_dict`."""
        super().load_state_dict(state)
        self._first = dict(state["first"])

    def _observations_after_step(self, batch: Any, info: dict[str, Any]) -> Tensors:
        self._first = self._observations.read(batch)
        over = self.over & ~self._lost()
        if not over.any():
            return dict(self._first)
        rows = torch.from_numpy(np.flatnonzero(over))
        last = self._observations.read(self._last(info["final_obs"], over))
        return {key: x.index_copy(0, rows, last[key]) for key, x in self._first.items()}

    def _last(self, final: Any, over: NDArray[np.bool_]) -> Any:
        """Return a batch of the last observations of the episodes that are over."""
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = final[over]
            space = self._vector.single_observation_space
            return concatenate(space, rows, create_empty_array(space, len(rows)))
        if isinstance(final, dict):
            return {name: self._last(entry, over) for name, entry in final.items()}
        return final[over]

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        self._check_over(chosen)
        return self._first


class NextStepEpisodes(Episodes):
    """Autoreset in the step after the end of an episode; that step is not a transition.

    The key `active` `[num_envs, 1]`, bool, is false where the next step is such a reset.
    """

    def begin(self) -> Tensors:
        """Start a new episode in every environment: see `Episodes.begin`."""
        self._current = {**super().begin(), "active": self._all_true()}
        return self._current

    def _observations_after_step(self, batch: Any, info: dict[str, Any]) -> Tensors:
        return {**self._observations.read(batch), "active": self._all_true()}

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        self._check_over(chosen)
        return {**self._current, "active": _column(~chosen, np.bool_)}

    def _ends(self, ended: NDArray[np.bool_], over: NDArray[np.bool_]) -> bool:
        return bool((ended == over).all())

    def _all_true(self) -> Tensor:
        return _column(np.ones_like(self.over), np.bool_)


def _column(values: NDArray, dtype: DTypeLike) -> Tensor:
    """Return a copy of `values` `[N]` as a tensor `[N, 1]`."""
    return torch.from_numpy(np.array(values, dtype).reshape(-1, 1))


def episodes_of(
    vector: VectorEnv, observations: Observations, seed: int | None, success: str | None
) -> Episodes:
    """Return the `Episodes` for the autoreset mode of a vector environment."""
    kinds = {
        AutoresetMode.DISABLED: Episodes,
        AutoresetMode.SAME_STEP: SameStepEpisodes,
        AutoresetMode.NEXT_STEP: NextStepEpisodes,
    }
    return kinds[vector.metadata["autoreset_mode"]](vector, observations, seed, success)
