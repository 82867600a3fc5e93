"""Vector environments of Gymnasium in Stable-Baselines3, without a process for each."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from torchrl_gpu.errors import ConfigurationError

if importlib.util.find_spec("stable_baselines3") is None:
    raise ConfigurationError('Stable-Baselines3 is not installed: pip install "torchrl-gpu[sb3]"')
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn


class StableBaselinesEnv(VecEnv):
    """A batch of environments as the `VecEnv` that the algorithms of Stable-Baselines3 train on.

        envs = gymnasium.make_vec("torchrl_gpu.gymnasium:torchrl_gpu/Fanuc-v0", num_envs=64)
        SAC("MlpPolicy", StableBaselinesEnv(envs)).learn(100_000)

    `infos` of an episode that ends has its `terminal_observation`, `TimeLimit.truncated`, and
    `is_success` from the `success` of the environment.

    Args:
        envs: vector environment with automatic resets in the same step, as those of this library.

    Raises:
        ConfigurationError: the environment resets in another way.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigurationError(f"envs: the autoreset mode is {mode}; it has to be SAME_STEP")
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> VecEnvObs:
        """Start new episodes, with the seeds that `seed` has set, if any."""
        seeds = None if None in self._seeds else self._seeds
        observation, _ = self.envs.reset(seed=seeds)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments."""
        observation, reward, terminated, truncated, given = self.envs.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        success = given.get("final_info", {}).get("success")
        for index in np.flatnonzero(done):
            info = infos[index]
            info["terminal_observation"] = given["final_obs"][index]
            info["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
            if success is not None:
                info["is_success"] = bool(success[index])
        return observation, reward, done, infos

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return a picture of each environment."""
        return self.envs.render() or [None] * self.num_envs

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the batch, once for each environment."""
        return [getattr(self.envs, attr_name)] * len(self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the batch, which all environments share."""
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: one environment of a batch has no methods."""
        raise NotImplementedError(f"{method_name}: the environments share one batch; use `envs`")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Return False for each environment."""
        return [False] * len(self._get_indices(indices))
