"""Evaluators: the environments that evaluations play in, and when they are built."""

import copy
from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from torchrl_gpu.acting.collector import Collector
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.bookkeeping import copy_statistics
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.evaluation.evaluation import Evaluation, evaluate, share_of


def default_num_envs(limit: int | None = None) -> int:
    """Return the number of environments of a long evaluation: 256, or the limit if it is less."""
    return min(256, limit or 256)


class Evaluator:
    """Evaluates policies in an environment that is built on first use.

    Later evaluations reuse the environment. An evaluation that needs another batch size builds a
    new one, so that equal arguments always play equal episodes.

    Args:
        env: environment in its evaluation mode, which the caller closes; or a function that takes
            `num_envs` and builds one.
        episodes: number of episodes of the evaluation after training and of mode=eval.
        num_envs: number of environments evaluated in parallel; None for one per episode, at most
            256, and with no more worker processes than training uses.
        limit: upper limit of the default `num_envs`; None for no limit but 256.
    """

    @checked
    def __init__(
        self,
        env: EnvBase | Callable[[int], EnvBase],
        *,
        episodes: Annotated[int, Field(ge=1)] = 500,
        num_envs: Annotated[int, Field(ge=1)] | None = None,
        limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.episodes = episodes
        self._num_envs = num_envs or default_num_envs(limit)
        self._given = env
        self._built: tuple[int, EnvBase] | None = None

    def evaluate(
        self,
        policy: TensorDictModuleBase,
        device: torch.device,
        *,
        episodes: int | None = None,
        processes: Processes = ONE_PROCESS,
        training_env: EnvBase | None = None,
        **options: Any,
    ) -> Evaluation:
        """Run the greedy policy for a number of episodes.

        The arguments are those of `trainers.evaluate`; without `episodes`, the number is that of
        the constructor. With `training_env`, transforms such as `VecNormV2` use the running
        statistics of that environment.
        """
        episodes = self.episodes if episodes is None else episodes
        env = self._env(max(1, share_of(episodes, processes)))
        if training_env is not None:
            copy_statistics(training_env, env)
        return evaluate(env, policy, device, episodes=episodes, processes=processes, **options)

    @property
    def env(self) -> EnvBase:
        """The environment for an evaluation of `episodes` episodes, built if necessary."""
        return self._env(self.episodes)

    def close(self) -> None:
        """Close the environment if this evaluator has built it."""
        if self._built is not None:
            self._built[1].close(raise_if_closed=False)
            self._built = None

    def _env(self, episodes: int) -> EnvBase:
        if isinstance(self._given, EnvBase):
            return self._given
        num_envs = min(episodes, self._num_envs)
        if self._built is None or self._built[0] != num_envs:
            self.close()
            self._built = num_envs, self._given(num_envs)
        return self._built[1]


class BorrowingEvaluator(Evaluator):
    """Evaluates policies in the training environment, and restores its state afterwards.

    `begin_anew` is called if the environment has no saved state.
    """

    def __init__(
        self, env: Environment, collector: Collector, begin_anew: Callable[[], None]
    ) -> None:
        super().__init__(env)
        self._collector = collector
        self._begin_anew = begin_anew

    def evaluate(self, *arguments: Any, **options: Any) -> Evaluation:
        """Evaluate in the training environment: see `Evaluator.evaluate`."""
        # A copy, because the environment keeps writing to the tensors of its state.
        state = copy.deepcopy(self._collector.state_dict())
        self.env.set_mode("eval")
        try:
            return super().evaluate(*arguments, **options)
        finally:
            self.env.set_mode("train")
            if not self._collector.load_state_dict(state):
                self._begin_anew()
