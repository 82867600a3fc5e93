"""Environments in rsl_rl, whose runners take tensors and TensorDicts on the device."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.environments.specs import action_bounds, action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError


class RslRlEnv:
    """An environment with the attributes and methods of `rsl_rl.env.VecEnv`.

        OnPolicyRunner(RslRlEnv(FanucEnv(num_envs=1024)), settings, device="cpu").learn(100)

    The groups of observations are the keys of the environment, as in
    `obs_groups: {"actor": ["observation"], "critic": ["observation"]}`.

    Args:
        env: environment with continuous actions, and one robot in each.

    Raises:
        ConfigurationError: the environment has several robots, or discrete actions.
    """

    def __init__(self, env: EnvBase) -> None:
        self.env = as_environment(env)
        self._robots = Robots(self.env)
        spec = action_spec(self.env)
        if spec.shape[0] != self.env.num_envs or not spec.dtype.is_floating_point:
            raise ConfigurationError("env: rsl_rl takes one robot with continuous actions in each")
        self._shape = self.env.full_action_spec[self._robots.action_key].shape
        self._bounds = action_bounds(spec)
        self._keys = list(observation_spec(self.env).keys())
        self.num_envs, self.num_actions = spec.shape
        self.device = self.env.device
        self.cfg: dict[str, Any] = {}
        self.max_episode_length = 1  # the first episodes are not staggered by a random length
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._root = self.env.reset()

    def get_observations(self) -> TensorDict:
        """Return the current observations `[N, ...]`."""
        view = self._flat(self._root)
        return TensorDict({key: view.get(key) for key in self._keys}, [self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Act once in every environment; an episode that ends is followed by the next one.

        The actions `[N, num_actions]` are clipped to the bounds.

        Returns:
            Observations of the next step; rewards `[N]`; whether episodes ended, `[N]`; and the
            extras `time_outs` `[N]`, episodes that were truncated without a termination, and `log`,
            with the successes among the episodes that ended.
        """
        taken = actions.clamp(*self._bounds).reshape(self._shape)
        transition, self._root = self.env.step_and_maybe_reset(
            self._root.set(self._robots.action_key, taken)
        )
        after = self._flat(transition.get("next"))
        reward, done, terminated, truncated = (
            after.get(name).squeeze(-1) for name in ("reward", "done", "terminated", "truncated")
        )
        extras: dict[str, Any] = {"time_outs": truncated & ~terminated}
        success = after.get("success", None)
        if success is not None:
            extras["log"] = {"/success": success.squeeze(-1)[done].float()}
        self.episode_length_buf = torch.where(done, 0, self.episode_length_buf + 1)
        return self.get_observations(), reward, done, extras

    def close(self) -> None:
        """Close the environment."""
        self.env.close(raise_if_closed=False)

    def _flat(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the entries of the robots, `[N]`."""
        view = self._robots.view(tensordict)
        return view if self._robots.group is None else view.flatten(0, 1)
