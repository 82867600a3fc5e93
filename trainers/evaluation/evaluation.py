"""Policy evaluation: parallel episodes and their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from pydantic import Field
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.acting.collector import BatchCollector, Simulating
from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.contents import check_count, check_like
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.bookkeeping import frozen_statistics
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER, Execution
from torchrl_gpu.intervals import wilson_interval
from torchrl_gpu.processes import ONE_PROCESS, Processes
from torchrl_gpu.tables import counted
from trainers.finite_watch import FiniteWatch, NonfiniteError
from trainers.metrics import EpisodeStatistics, read

# Reading the finished episodes back from an accelerator stalls its pipeline.
_STEPS_BETWEEN_READS = 10
# Steps without the end of a counted episode: many times the usual length of an episode.
_MAX_STEPS = 100_000


class EvaluationStoppedError(Exception):
    """An evaluation was broken off on request, in all processes; it has no result."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        episodes: number of episodes.
        mean_return: mean undiscounted return of an episode, averaged over the robots of an
            environment.
        mean_length: mean length of an episode in environment steps.
        success: success rate, 0 to 1; None if the environment does not report success.
        success_low: lower bound of the 95 % confidence interval of the success rate (Wilson).
        success_high: upper bound of the 95 % confidence interval of the success rate (Wilson).
    """

    episodes: int
    mean_return: float
    mean_length: float
    success: float | None = None
    success_low: float | None = None
    success_high: float | None = None

    @classmethod
    def of(cls, episodes: int, means: Mapping[str, float]) -> Evaluation:
        """Return the result of a number of episodes from their means by `EpisodeStatistics`."""
        mean_return, mean_length = means["episode/return"], means["episode/length"]
        success = means.get("episode/success")
        if success is None:
            return cls(episodes, mean_return, mean_length)
        low, high = wilson_interval(round(success * episodes), episodes)
        return cls(episodes, mean_return, mean_length, success, low, high)

    @property
    def score(self) -> float:
        """Criterion of the best checkpoint: the success rate, or the mean return without one."""
        return self.mean_return if self.success is None else self.success

    def as_metrics(self) -> dict[str, float]:
        """Return success, return and length as metrics with the prefix `evaluation/`."""
        names = {"success": self.success, "return": self.mean_return, "length": self.mean_length}
        return {f"evaluation/{k}": v for k, v in names.items() if v is not None}

    def __str__(self) -> str:
        """Return the result as one line of text."""
        line = f"return {self.mean_return:.2f}, {self.mean_length:.1f} steps"
        if self.success is not None:
            line = (
                f"success {self.success:.1%} "
                f"(95 % interval {self.success_low:.1%} to {self.success_high:.1%}), {line}"
            )
        return f"{line}, {counted(self.episodes, 'episode')}"


def evaluations_state(evaluations: Mapping[int, Evaluation]) -> dict[str, Tensor]:
    """Return evaluations by number of frames as tensors `[N]`, of which a file holds any number."""
    columns = {"frames": torch.tensor(list(evaluations), dtype=torch.int64)}
    for each in fields(Evaluation):
        values = (getattr(evaluation, each.name) for evaluation in evaluations.values())
        numbers = [math.nan if value is None else value for value in values]
        columns[each.name] = torch.tensor(numbers, dtype=torch.float64)
    return columns


def evaluations_of(state: Mapping[str, Any]) -> dict[int, Evaluation]:
    """Return the evaluations of a saved run, by number of frames."""
    saved = state["evaluations"]
    count = len(saved["frames"])
    like = {name: column.new_empty(count) for name, column in evaluations_state({}).items()}
    check_like(saved, like, "the saved evaluations")
    frames, *columns = (saved[name].tolist() for name in like)
    evaluations = {}
    for number, episodes, *means in zip(frames, *columns, strict=True):
        known: list[Any] = [None if math.isnan(mean) else mean for mean in means]
        evaluations[number] = Evaluation(int(episodes), *known)
    for frames, evaluation in evaluations.items():
        check_count(frames, "the frames of an evaluation", high=state["frames"])
        check_evaluation(evaluation, "an evaluation")
    return evaluations


def check_evaluation(evaluation: Evaluation, name: str) -> None:
    """Refuse an evaluation from a file that lacks a number, or has another value in its place."""
    check_count(evaluation.episodes, f"{name}: episodes", low=1)
    numbers = {entry: x for entry, x in vars(evaluation).items() if x is not None}
    means = ("episodes", "mean_return", "mean_length")
    expected = means if evaluation.success is None else vars(evaluation)
    check_like(numbers, dict.fromkeys(expected, 1.0), name)


@checked
def evaluate(
    env: EnvBase,
    policy: TensorDictModuleBase,
    device: torch.device,
    *,
    episodes: Annotated[int, Field(ge=1)] = 500,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    observe: Callable[[TensorDictBase, Tensor], object] | None = None,
    execution: Execution = EAGER,
    simulating: Simulating | None = None,
    stop: Callable[[], bool] | None = None,
    processes: Processes = ONE_PROCESS,
) -> Evaluation:
    """Run the greedy policy for a number of episodes.

    Each process plays an equal share of the episodes, and returns the result of all. Each
    environment of the batch plays an equal share of these; its further episodes do not count, and
    are left out where that saves time (`Environment.set_idle`). Counting the first episodes to end
    would bias the means towards short episodes.

    The return is the sum of the rewards as `env` returns them, after its transforms: leave out
    those that change rewards, such as `RewardScaling`, for the return of the task itself. Running
    statistics, such as those of `VecNormV2`, do not move.

    Args:
        env: batched environment in its evaluation mode; it is seeded and reset.
        policy: policy to evaluate, in eval mode; its previous mode is restored afterwards.
        device: device of the policy.
        episodes: number of episodes of all processes, at least 1.
        seed: seed of the environment; equal seeds give equal episodes, so each process has its own.
        progress: function that is called at intervals with the number of episodes that this process
            has finished, and at the end with its share.
        observe: function that is called after every step with the transitions `[R]` of all robots,
            which the next step overwrites, and with those that count, bool `[R]`.
        execution: executes the policy steps.
        simulating: marks the steps and resets, see `BatchCollector`.
        stop: function that is asked at intervals whether to break off; None for never.
        processes: processes that all call this function with as many episodes.

    Raises:
        EvaluationStoppedError: one of the processes was to break off.
        ConfigurationError: no episode ends within 100,000 steps; or an observation, an action, a
            reward or a mean is NaN or infinite.
    """
    env = as_environment(env)
    env.set_seed(seed)
    collector = BatchCollector(env, device, policy.in_keys, execution, simulating)
    share = share_of(episodes, processes)
    quota = torch.full((env.num_envs,), share // env.num_envs, device=device)
    quota[: share % env.num_envs] += 1
    statistics = EpisodeStatistics(env.num_envs, device, processes)
    rows = env.full_reward_spec[collector.robots.reward_key].shape.numel()
    watch = FiniteWatch(policy.in_keys, rows, device)
    steps_between_reads = _STEPS_BETWEEN_READS if accelerator_of(device).reads_stall else 1
    step = done = latest = 0  # `latest` is the step of the latest end of an episode
    stopped = False
    with frozen_statistics(env), _greedy(policy):
        while done < share and not stopped:
            transition = collector.step(policy)
            after, due = transition["next"], quota > 0
            # The robots of one environment share its return.
            reward = after[collector.robots.reward_key].reshape(env.num_envs, -1).mean(1)
            statistics.update(transition, reward, due)
            robots = collector.robots.transition(transition)
            due_robots = due.repeat_interleave(rows // env.num_envs)
            watch.update(robots, due_robots)
            if observe is not None:
                observe(robots, due_robots)
            quota -= (after["done"].reshape(env.num_envs) & due).to(quota.dtype)
            step += 1
            if step % steps_between_reads == 0:
                read_back = torch.cat((quota, watch.is_finite().view(1))).cpu()
                left, is_finite = read_back[:-1], read_back[-1]
                if not is_finite:
                    raise NonfiniteError(watch.cause(step, " of an evaluation"))
                env.set_idle(left == 0)
                before, done = done, share - int(left.sum())
                if done > before:
                    latest = step
                if progress is not None:
                    progress(done)
                stopped = stop is not None and stop()
            if step - latest >= _MAX_STEPS:
                raise ConfigurationError(
                    f"env: no episode ended within {_MAX_STEPS:,} steps of an evaluation; the "
                    "environment needs a time limit, for instance TorchRL's StepCounter"
                )
        env.set_idle(torch.zeros(env.num_envs, dtype=torch.bool))
    if processes.any(stopped):
        raise EvaluationStoppedError
    means = read(statistics.take())
    for name, mean in means.items():
        if not math.isfinite(mean):
            raise NonfiniteError(f"env: the mean {name} of an evaluation is NaN or infinite")
    return Evaluation.of(episodes, means)


def share_of(episodes: int, processes: Processes) -> int:
    """Return the number of episodes that this process plays, which may be 0."""
    return episodes // processes.count + (processes.rank < episodes % processes.count)


@contextmanager
def _greedy(policy: TensorDictModuleBase) -> Iterator[None]:
    """Let a policy act greedily within the block."""
    was_training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(was_training)
