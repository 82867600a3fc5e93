"""One environment as a `gymnasium.Env`."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray
from torchrl.envs import EnvBase

from torchrl_gpu.gymnasium.arrays import RENDER_MODES, Arrays, Observation


class SingleEnv(gymnasium.Env[Any, Any]):
    """One environment of this library in Gymnasium; see `Arrays` for its arrays.

    `info` has `success`; with several robots also the `rewards` of each. An episode goes on as long
    as one robot acts. Arguments and errors are those of `BatchedEnv`, except `num_envs`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES}

    def __init__(
        self,
        target: str | Callable[..., EnvBase],
        *,
        discrete: bool = False,
        render_mode: Literal["rgb_array"] | None = None,
        **settings: Any,
    ) -> None:
        self.arrays = Arrays(target, 1, discrete, render_mode, settings)
        self.render_mode = render_mode
        self.metadata = self.arrays.metadata  # type: ignore[misc]  # with the rate of the instance
        self.observation_space = self.arrays.observation_space
        self.action_space = self.arrays.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: random seed that determines this episode and those after it; None to continue the
                random sequence.
            options: unused.
        """
        super().reset(seed=seed)
        observation = self.arrays.reset(None if seed is None else [seed])
        return self.arrays.given(observation, 0), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act once, by an action of `action_space`."""
        results = self.arrays.step([action], resets=False)
        info = results.info.items()
        return (
            self.arrays.given(results.observation, 0),
            float(results.reward[0]),
            bool(results.terminated[0]),
            bool(results.truncated[0]),
            {name: array[0] if array.ndim > 1 else array.item() for name, array in info},
        )

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture with its caption; None without a `render_mode`."""
        return None if self.render_mode is None else self.arrays.picture(0)

    def close(self) -> None:
        """Close the environment; may be called again."""
        self.arrays.close()
