"""Base class of environments with one arm each: specs, resets and first observations."""

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.environment import DONE_NAMES, Environment


class ArmEnv(Environment):
    """Environment whose action is one vector in [-1, 1] per arm, with the observation `success`."""

    def _make_specs(self, action_dim: int, observation: TensorSpec, **others: TensorSpec) -> None:
        """Set all specs, once the environment has its batch size and device."""
        success = self._spec_of_flag(1)
        self.observation_spec = Composite(
            observation=observation, success=success, **others, shape=self.batch_size
        )
        options: dict[str, Any] = {"dtype": torch.float32, "device": self.device}
        self.action_spec = Bounded(-1.0, 1.0, (*self.batch_size, action_dim), **options)
        # TorchRL's transforms of rewards ask for a spec without bounds.
        self.reward_spec = Unbounded((*self.batch_size, 1), **options)
        self.full_done_spec = self._spec_of_dones()
        self._no = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        self._reads_stall = accelerator_of(self.device).reads_stall

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        done = after.get("done")
        if not self._reads_stall and not done.any():
            return after.exclude("reward")
        self._restart(done)
        return self.observe()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self.set_idle(torch.zeros(self.num_envs, dtype=torch.bool))
        self._restart(~self._no if mask is None else mask)
        return self.observe()

    def observe(self) -> TensorDict:
        """Return the current observations as a reset does, for instance after loading a state.

        Returns:
            TensorDict `[num_envs]` with the observations; `success` and the done keys are false.
        """
        flags = dict.fromkeys(("success", *DONE_NAMES), self._no)
        return self._batch({**self._observations(), **flags})

    def _after_step(
        self, reward: Tensor, success: Tensor, truncated: Tensor, done: Tensor
    ) -> TensorDict:
        """Return the result of `_step`, from values `[num_envs, 1]`; success is a termination."""
        return self._batch(
            {
                **self._observations(),
                "success": success,
                "reward": reward,
                "terminated": success.clone(),
                "truncated": truncated,
                "done": done,
            }
        )

    @abstractmethod
    def _observations(self) -> dict[str, Tensor]:
        """Return the current observations except `success`."""

    @abstractmethod
    def _restart(self, mask: Tensor) -> None:
        """Start a new episode in the environments of a mask, bool `[num_envs, 1]`."""
