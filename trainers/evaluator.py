"""Where policies are evaluated: in an environment for it, or in the one of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from pydantic import Field
from torchrl.envs import EnvBase

from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.arguments import checked
from torchrl_gpu.execution import EAGER, Execution
from trainers.evaluation import Evaluation, evaluate

_MOST_ENVS = 256


class Evaluator:
    """Evaluates policies in an environment that is built when it is first needed.

    The environment is kept for later evaluations. One that needs another number of environments
    builds anew, so that the same arguments always play the same episodes.

    Args:
        env: an environment in its evaluation mode, which remains the caller's; or a function that
            builds one, given `num_envs`.
        episodes: of the evaluation at the end of training, and with mode=eval.
        num_envs: environments that play them at the same time; None for as many as there are
            episodes, at most 256, and no more worker processes than training has.
        limit: the most that `env` can build by itself, without a number from the user; None for
            any number.
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
        self._num_envs = num_envs or min(_MOST_ENVS, limit or _MOST_ENVS)
        self._given = env if isinstance(env, EnvBase) else None
        self._build = env
        self._built: tuple[int, EnvBase] | None = None

    def evaluate(
        self,
        policy: PolicyWrapper,
        device: torch.device,
        *,
        seed: int,
        episodes: int | None = None,
        progress: Callable[[int], object] | None = None,
        execution: Execution = EAGER,
    ) -> Evaluation:
        """Run the greedy policy for a number of episodes; see `trainers.evaluation.evaluate`.

        Args:
            policy: left in the mode that it was in.
            device: where the policy lives.
            seed: the same seed gives the same episodes.
            episodes: None for those of the constructor.
            progress: called now and then with the number of episodes done.
            execution: carries out acting.
        """
        episodes = self.episodes if episodes is None else episodes
        return evaluate(
            self._env(episodes),
            policy,
            device,
            episodes=episodes,
            seed=seed,
            progress=progress,
            execution=execution,
        )

    @property
    def env(self) -> EnvBase:
        """The environment of an evaluation of `episodes` episodes."""
        return self._env(self.episodes)

    def close(self) -> None:
        """Close the environment that was built here, if any."""
        if self._built is not None:
            self._built[1].close(raise_if_closed=False)
            self._built = None

    def _env(self, episodes: int) -> EnvBase:
        if self._given is not None:
            return self._given
        num_envs = min(episodes, self._num_envs)
        if self._built is None or self._built[0] != num_envs:
            self.close()
            self._built = num_envs, self._build(num_envs)
        return self._built[1]


@contextmanager
def evaluation_mode(env: Any) -> Iterator[EnvBase]:
    """Switch an environment that can to its evaluation mode, and back to training at the end."""
    env.set_mode("eval")
    try:
        yield env
    finally:
        env.set_mode("train")
