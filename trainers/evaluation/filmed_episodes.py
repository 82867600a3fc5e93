"""Results of filmed episodes: the return so far, and the means of the episodes that ended."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.robots import Robots
from trainers.evaluation.evaluation import Evaluation
from trainers.metrics import EpisodeStatistics


class FilmedEpisodes:
    """Follows the first episode that each of the filmed environments plays after a reset.

    Args:
        env: batched environment.
        count: number of filmed environments, the first ones of the batch.
    """

    def __init__(self, env: Environment, count: int) -> None:
        self._env = env
        self._count = count
        self._reward_key = Robots(env).reward_key
        self._num_envs = env.batch_size.numel()
        self._statistics = EpisodeStatistics(self._num_envs, "cpu")
        self._measurements: dict[str, float] = {}
        self._episodes = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new episode in every environment, after a reset."""
        self._open = torch.arange(self._num_envs) < self._count
        self._returns = torch.zeros(self._num_envs)

    def add(self, transition: TensorDictBase) -> None:
        """Add one batched step.

        Args:
            transition: result of `env.step`.
        """
        after = transition["next"].cpu()
        # The robots of one environment share its return.
        reward = after[self._reward_key].reshape(self._num_envs, -1).mean(1)
        self._returns += reward * self._open
        success = after.get("success", None)
        self._statistics.update(reward, after["done"], success, counted=self._open)
        ended = after["done"].reshape(-1) & self._open
        self._open &= ~ended
        for index in ended.nonzero()[:, 0].tolist():
            self._episodes += 1
            for name, value in self._env.measurements(index).items():
                self._measurements[name] = self._measurements.get(name, 0.0) + value

    def captions(self) -> list[str]:
        """Return the caption of each filmed environment, or else the return of its episode."""
        return [
            self._env.caption(index) or f"return {self._returns[index]:.1f}"
            for index in range(self._count)
        ]

    def evaluation(self) -> Evaluation:
        """Return means over the episodes that ended."""
        return Evaluation.of(self._episodes, self._statistics.flush())

    def measurements(self) -> dict[str, float]:
        """Return mean measurements of the last states of the episodes that ended, by name."""
        return {name: total / self._episodes for name, total in self._measurements.items()}
