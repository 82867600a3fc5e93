"""How good is a policy: many episodes in parallel, success with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torchrl.envs import EnvBase

from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution import EAGER, Execution
from torchrl_gpu.intervals import wilson_interval
from trainers.metrics import EpisodeStatistics

_STEPS_BETWEEN_LOOKS = 10
# Without an end of any episode: many times the longest that people use.
_MOST_STEPS = 100_000


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        episodes: number of episodes.
        mean_return: mean undiscounted return; in a world of several robots, their mean.
        mean_length: mean length in environment steps.
        success: share of successful episodes, 0 to 1; None where the world knows no success.
        success_low: lower end of the 95 % confidence interval (Wilson).
        success_high: its upper end.
    """

    episodes: int
    mean_return: float
    mean_length: float
    success: float | None = None
    success_low: float | None = None
    success_high: float | None = None

    @property
    def score(self) -> float:
        """What the best checkpoint is chosen by: success where there is one, else the return."""
        return self.mean_return if self.success is None else self.success

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)

    def as_metrics(self) -> dict[str, float]:
        """Return the figures as metrics under `evaluation/`."""
        names = {"success": self.success, "return": self.mean_return, "length": self.mean_length}
        return {f"evaluation/{k}": v for k, v in names.items() if v is not None}

    def __str__(self) -> str:
        """Say it in one line."""
        line = f"return {self.mean_return:.2f}, {self.mean_length:.1f} steps"
        if self.success is not None:
            line = (
                f"success {self.success:.1%} "
                f"(95 % interval {self.success_low:.1%} to {self.success_high:.1%}), {line}"
            )
        return f"{line}, {self.episodes} episodes"


@checked
def evaluate(
    env: EnvBase,
    policy: PolicyWrapper,
    device: torch.device,
    *,
    episodes: Annotated[int, Field(ge=1)] = 500,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    execution: Execution = EAGER,
) -> Evaluation:
    """Run the greedy policy for a number of episodes.

    Each environment of the batch plays its share of the episodes and its surplus is not counted:
    to take whichever end first would favour the short ones.

    Args:
        env: a batched environment in its evaluation mode; it is seeded and reset.
        policy: is put in eval mode, and left in the mode it was in.
        device: where the policy lives.
        episodes: number of episodes.
        seed: the same seed gives the same episodes.
        progress: called now and then with the number of episodes done, and with all of them at
            the end.
        execution: carries out acting.
    """
    env = as_environment(env)
    was_training = policy.training
    policy.eval()
    try:
        return _play(env, policy, device, episodes, seed, progress, execution)
    finally:
        policy.train(was_training)


def _play(
    env: EnvBase,
    policy: PolicyWrapper,
    device: torch.device,
    episodes: int,
    seed: int,
    progress: Callable[[int], object] | None,
    execution: Execution,
) -> Evaluation:
    """Play the episodes and return what they came to."""
    env.set_seed(seed)
    collector = BatchCollector(env, device, policy.in_keys, execution)
    num_envs = env.batch_size.numel()
    quota = torch.full((num_envs,), episodes // num_envs, device=device)
    quota[: episodes % num_envs] += 1

    statistics = EpisodeStatistics(num_envs, device)
    step = done = 0
    while done < episodes:
        transition = collector.step(policy)
        after, active = transition["next"], transition.get("active", None)
        due = quota > 0
        # The robots of one environment share its return.
        reward = after[collector.robots.reward_key].reshape(num_envs, -1).mean(1)
        statistics.update(reward, after["done"], after.get("success", None), active, due)
        quota -= (after["done"].reshape(num_envs) & due).to(quota.dtype)
        step += 1
        if step % _STEPS_BETWEEN_LOOKS == 0:
            done = episodes - int(quota.sum())
            if progress is not None:
                progress(done)
        if done == 0 and step >= _MOST_STEPS:
            raise ConfigurationError(
                f"env: no episode has ended within {_MOST_STEPS:,} steps of an evaluation, which "
                "needs a time limit, that of TorchRL's StepCounter for instance"
            )

    means = statistics.flush()
    mean_return, mean_length = means["episode/return"], means["episode/length"]
    success = means.get("episode/success")
    if success is None:
        return Evaluation(episodes, mean_return, mean_length)
    low, high = wilson_interval(round(success * episodes), episodes)
    return Evaluation(episodes, mean_return, mean_length, success, low, high)
