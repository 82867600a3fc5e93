"""A batch of environments as a `gymnasium.vector.VectorEnv`."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torchrl.envs import EnvBase

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.gymnasium.arrays import RENDER_MODES, Arrays, Observation, Results


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """Environments of this library in Gymnasium, simulated together; see `Arrays`.

    An episode that ends is followed by the next one in the same step (`AutoresetMode.SAME_STEP`):
    the observation is the first of the new episode, `final_obs` has the last of the old one, and
    `final_info` its `success`.

    Args:
        target: class of the environment, as `package:Class` or itself.
        num_envs: number of environments.
        discrete: take the row numbers of the environment's table of discrete actions.
        render_mode: `rgb_array` for pictures `[H, W, 3]`, in the mode `demo` by default; None for
            no pictures.
        settings: other arguments of the class. Without `seed` the episodes differ from those of
            every other instance.

    Raises:
        ConfigurationError: a setting is unknown or out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": RENDER_MODES,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        target: str | Callable[..., EnvBase],
        *,
        num_envs: int = 1,
        discrete: bool = False,
        render_mode: Literal["rgb_array"] | None = None,
        **settings: Any,
    ) -> None:
        self.arrays = Arrays(target, num_envs, discrete, render_mode, settings)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, **self.arrays.metadata}  # type: ignore[misc]
        self.single_observation_space = self.arrays.observation_space
        self.single_action_space = self.arrays.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes in all environments.

        Args:
            seed: random seed of the first environment, those after it have the numbers that follow;
                or a seed for each; None to continue the random sequences.
            options: unused.

        Raises:
            ConfigurationError: the number of seeds differs from that of the environments, or one is
                not a whole number from 0.
        """
        if seed is None:
            return self.arrays.given(self.arrays.reset()), {}
        given = np.asarray(seed, dtype=object)
        if not all(isinstance(each, int | np.integer) and each >= 0 for each in given.flat):
            raise ConfigurationError(f"seed={seed}: use whole numbers from 0, or None for all")
        numbers = [int(each) for each in given.flat]
        if given.ndim == 0:
            numbers = list(range(numbers[0], numbers[0] + self.num_envs))
        if len(numbers) != self.num_envs:
            raise ConfigurationError(f"seed: {len(numbers)} seeds for {self.num_envs} environments")
        super().reset(seed=numbers[0])
        return self.arrays.given(self.arrays.reset(numbers)), {}

    def step(
        self, actions: Any
    ) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Act once in every environment, by actions `[N, ...]` of `action_space`."""
        results = self.arrays.step(actions, resets=True)
        done = results.terminated | results.truncated
        return (
            self.arrays.given(results.next_observation),
            results.reward,
            results.terminated,
            results.truncated,
            _masked(results.info, ~done) | self._ended(results, done),
        )

    def _ended(self, results: Results, done: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the entries of `infos` of the episodes that ended."""
        if not done.any():
            return {}
        last = np.full(self.num_envs, None, dtype=object)
        for index in np.flatnonzero(done).tolist():
            last[index] = self.arrays.given(results.observation, index)
        ended = _masked(results.info, done)
        return {"final_obs": last, "final_info": ended} | _masks(done, "final_obs", "final_info")

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a picture of every environment; None without a `render_mode`."""
        if self.render_mode is None:
            return None
        return tuple(map(self.arrays.picture, range(self.num_envs)))

    def close_extras(self, **_: Any) -> None:
        """Close the environments."""
        self.arrays.close()


def _masked(info: dict[str, NDArray[Any]], mask: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return infos of some environments as Gymnasium has them: 0 in others, and with the masks."""
    kept = {name: np.zeros_like(array) for name, array in info.items()}
    for name, array in info.items():
        kept[name][mask] = array[mask]
    return kept | _masks(mask, *info)


def _masks(mask: NDArray[np.bool_], *names: str) -> dict[str, NDArray[Any]]:
    return {f"_{name}": mask.copy() for name in names}
