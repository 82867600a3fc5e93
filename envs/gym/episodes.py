"""Step a vector environment, and begin new episodes in it: one class for each autoreset mode.

Whatever the mode, `step` shows the true last observation of an episode, and `restart` the first
one of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torchrl.data import Binary, TensorSpec

from envs.gym.observations import Observations
from torchrl_gpu.errors import ConfigurationError

DONE_KEYS = ("terminated", "truncated", "done")

Tensors = dict[str, Tensor]


class Episodes:
    """Autoreset disabled: an episode begins when `restart` says so, in any environment.

    Args:
        vector: the environments.
        observations: reads what they show.
        seed: of the first `begin`.

    Attributes:
        seed: of the next `begin`; None: random numbers go on as they are.
        over: which episodes ended with the last step `[num_envs]`, bool.
    """

    def __init__(self, vector: VectorEnv, observations: Observations, seed: int | None) -> None:
        self.seed = seed
        self.over: NDArray[np.bool_] = np.zeros(vector.num_envs, np.bool_)
        self._vector = vector
        self._observations = observations

    def state_specs(self) -> dict[str, TensorSpec]:
        """Return the specs of what is shown besides observations."""
        return {}

    def begin(self) -> Tensors:
        """Begin a new episode in every environment.

        Returns:
            What is shown now, by key, with `terminated`, `truncated` and `done`, each false.
        """
        batch, _ = self._vector.reset(seed=self.seed)
        self.seed = None
        self.over = np.zeros_like(self.over)
        return self._nothing_done(self._shown_first(batch))

    def restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        """Begin a new episode in some environments.

        Args:
            chosen: which ones `[num_envs]`; all of them although not all are over: `begin`.

        Returns:
            What all environments show now, as `begin` returns it.

        Raises:
            ConfigurationError: an episode is not over that the environment cannot end.
        """
        if chosen.all() and not self.over.all():
            return self.begin()
        return self._nothing_done(self._restart(chosen))

    def step(self, action: NDArray) -> Tensors:
        """Act once in every environment.

        Args:
            action: as the vector environment takes it.

        Returns:
            What is shown now, where an episode is over the last of it, by key; and `reward`
            float32, `terminated`, `truncated` and `done` bool, each `[num_envs, 1]`.
        """
        batch, reward, terminated, truncated, info = self._vector.step(action)
        self.over = np.logical_or(terminated, truncated)
        return {
            **self._shown(batch, info),
            "reward": _column(reward, np.float32),
            "terminated": _column(terminated, np.bool_),
            "truncated": _column(truncated, np.bool_),
            "done": _column(self.over, np.bool_),
        }

    def _nothing_done(self, shown: Tensors) -> Tensors:
        no = np.zeros_like(self.over)
        return {**shown, **{key: _column(no, np.bool_) for key in DONE_KEYS}}

    def _shown_first(self, batch: Any) -> Tensors:
        return self._observations.read(batch)

    def _shown(self, batch: Any, info: dict[str, Any]) -> Tensors:
        return self._observations.read(batch)

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        batch, _ = self._vector.reset(options={"reset_mask": chosen})
        return self._observations.read(batch)

    def _refuse_others_than_over(self, chosen: NDArray[np.bool_]) -> None:
        if (chosen & ~self.over).any():
            raise ConfigurationError(
                "a new episode was asked for in an environment whose episode is not over: that "
                "needs autoreset=disabled"
            )


class SameStepEpisodes(Episodes):
    """Autoreset in the step that ends an episode, which tells the last observation besides."""

    _first: Tensors

    def _shown(self, batch: Any, info: dict[str, Any]) -> Tensors:
        self._first = self._observations.read(batch)
        if not self.over.any():
            return self._first
        rows = torch.from_numpy(np.flatnonzero(self.over))
        last = self._observations.read(self._last(info["final_obs"]))
        return {key: x.index_copy(0, rows, last[key]) for key, x in self._first.items()}

    def _last(self, final: Any) -> Any:
        """Return a batch of the last observations of those that are over."""
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = final[self.over]
            space = self._vector.single_observation_space
            return concatenate(space, rows, create_empty_array(space, len(rows)))
        if isinstance(final, dict):
            return {name: entry[self.over] for name, entry in final.items()}
        return final[self.over]

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        self._refuse_others_than_over(chosen)
        return self._first


class NextStepEpisodes(Episodes):
    """Autoreset in the step after the end of an episode; that step is none of the task.

    The key `active` `[num_envs, 1]`, bool, is false where the next step will be such a one.
    """

    _last: Tensors

    def state_specs(self) -> dict[str, TensorSpec]:
        """Return the spec of `active`."""
        num_envs = len(self.over)
        return {"active": Binary(1, (num_envs, 1), dtype=torch.bool)}

    def _shown_first(self, batch: Any) -> Tensors:
        return {**super()._shown_first(batch), "active": self._everywhere()}

    def _shown(self, batch: Any, info: dict[str, Any]) -> Tensors:
        self._last = super()._shown(batch, info)
        return {**self._last, "active": self._everywhere()}

    def _restart(self, chosen: NDArray[np.bool_]) -> Tensors:
        self._refuse_others_than_over(chosen)
        return {**self._last, "active": _column(~chosen, np.bool_)}

    def _everywhere(self) -> Tensor:
        return _column(np.ones_like(self.over), np.bool_)


def _column(values: NDArray, dtype: DTypeLike) -> Tensor:
    """Return a copy of `values` `[N]` as a tensor `[N, 1]`."""
    return torch.from_numpy(np.array(values, dtype).reshape(-1, 1))


def episodes_of(vector: VectorEnv, observations: Observations, seed: int | None) -> Episodes:
    """Return what steps a vector environment in its own autoreset mode; see `Episodes`."""
    kinds = {
        AutoresetMode.DISABLED: Episodes,
        AutoresetMode.SAME_STEP: SameStepEpisodes,
        AutoresetMode.NEXT_STEP: NextStepEpisodes,
    }
    return kinds[vector.metadata["autoreset_mode"]](vector, observations, seed)
