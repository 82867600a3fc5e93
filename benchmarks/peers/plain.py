"""Jobs in plain PyTorch, without a library."""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import gymnasium as gym
import torch
from torch import Tensor

from benchmarks.fixture import ACTION_DIM, OBSERVATION_DIM
from benchmarks.measuring import Run, times
from benchmarks.peers import jobs
from benchmarks.peers.jobs import CARTPOLE_PPO, RANDOM_PPO, SEAS_PPO, Build, Builders, PPOTask
from benchmarks.peers.plain_agents import (
    DDPG,
    DQN,
    PPO,
    SAC,
    Batch,
    Replay,
    Rollout,
    random_batch,
)
from benchmarks.peers.seas import ACTIONS, Vessels

# The next observations `[N, D]`, rewards `[N]`, and 1 for each episode that ended `[N]`.
Step = tuple[Tensor, Tensor, Tensor]


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def in_bf16_compiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return a function compiled, with its matrix products in bfloat16."""
    compiled = torch.compile(function)

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(*args, **kwargs)

    return call


def build_off_policy(
    build: Callable[[], SAC | DDPG | DQN], is_discrete: bool = False, is_fast: bool = False
) -> Run:
    """Return a run of updates with batches from a filled replay."""
    learner = build()
    replay = Replay(jobs.STORED, random_batch(1, is_discrete))
    replay.add(random_batch(jobs.STORED, is_discrete))
    update = in_bf16_compiled(learner.update) if is_fast else learner.update
    return times(lambda: update(replay.sample()))


def make_ppo(
    observation_dim: int, actions: int, task: PPOTask, is_fast: bool, is_discrete: bool = False
) -> PPO:
    """Return PPO, whose gradient steps are compiled and in bfloat16 if it is fast."""
    learner = PPO(observation_dim, actions, is_discrete, task)
    if is_fast:
        learner.learn = in_bf16_compiled(learner.learn)  # type: ignore[method-assign]
    return learner


def build_ppo(is_fast: bool = False) -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    learner = make_ppo(OBSERVATION_DIM, ACTION_DIM, RANDOM_PPO, is_fast)
    shape = (RANDOM_PPO.rollout_length, RANDOM_PPO.num_envs)
    with torch.no_grad():
        chosen = learner.choose(torch.randn(*shape, OBSERVATION_DIM))
    rollout = Rollout(*chosen, torch.randn(shape), torch.zeros(shape))
    return times(lambda: learner.update(rollout, rollout.value[-1]), RANDOM_PPO.updates)


def build_training_sac(is_fast: bool = False) -> Run:
    """Return a run of frames of SAC on Pendulum-v1."""
    env = gym.make(jobs.PENDULUM)
    learner = SAC(3, 1, jobs.LEARNING_RATE)
    update = in_bf16_compiled(learner.update) if is_fast else learner.update
    bound = float(env.action_space.high[0])
    one = torch.zeros(1, 1)
    replay = Replay(jobs.CAPACITY, Batch(torch.zeros(1, 3), one, one, one, torch.zeros(1, 3)))
    observation = torch.as_tensor(env.reset(seed=0)[0])

    def step(is_random: bool) -> None:
        nonlocal observation
        with torch.no_grad():
            action = learner.act(observation)[0]
        if is_random:
            action = torch.rand(1) * 2.0 - 1.0
        numbers, reward, terminated, truncated, _ = env.step(bound * action.numpy())
        after = torch.as_tensor(numbers)
        replay.add(
            Batch(
                observation.unsqueeze(0),
                action.unsqueeze(0),
                torch.tensor([[float(reward)]]),
                torch.tensor([[float(terminated)]]),
                after.unsqueeze(0),
            )
        )
        ended = terminated or truncated
        observation = torch.as_tensor(env.reset()[0]) if ended else after

    def step_and_learn() -> None:
        step(is_random=False)
        update(replay.sample())

    for _ in range(jobs.RANDOM_FRAMES):
        step(is_random=True)
    return times(step_and_learn)


def train_ppo(
    learner: PPO, task: PPOTask, observation: Tensor, step: Callable[[Tensor], Step]
) -> Run:
    """Return a run of frames of PPO; a time limit ends an episode like a termination.

    Args:
        learner: algorithm.
        task: settings of the training.
        observation: first observations `[num_envs, D]`.
        step: steps all environments by actions, and returns the next observations, rewards and
            ends of episodes.
    """

    def collect_and_learn() -> None:
        nonlocal observation
        steps = []
        with torch.no_grad():
            for _ in range(task.rollout_length):
                chosen = learner.choose(observation)
                observation, reward, done = step(chosen.action)
                steps.append(Rollout(*chosen, reward, done))
            last_value = learner.critic(observation).squeeze(-1)
        learner.update(Rollout(*map(torch.stack, zip(*steps, strict=True))), last_value)

    return times(collect_and_learn, task.frames)


def build_training_ppo(is_fast: bool = False) -> Run:
    """Return a run of frames of PPO on CartPole-v1."""
    envs = gym.make_vec(
        jobs.CARTPOLE,
        CARTPOLE_PPO.num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
    )

    def step(action: Tensor) -> Step:
        numbers, reward, terminated, truncated, _ = envs.step(action.numpy())
        ends = torch.as_tensor(terminated | truncated, dtype=torch.float32)
        return torch.as_tensor(numbers), torch.as_tensor(reward, dtype=torch.float32), ends

    learner = make_ppo(4, 2, CARTPOLE_PPO, is_fast, is_discrete=True)
    return train_ppo(learner, CARTPOLE_PPO, torch.as_tensor(envs.reset(seed=0)[0]), step)


def build_seas_ppo(is_fast: bool = False) -> Run:
    """Return a run of frames of PPO on the seas."""
    vessels = Vessels()

    def step(action: Tensor) -> Step:
        after, reward, terminated, truncated = vessels.step(action)
        return after, reward.squeeze(1), (terminated | truncated).squeeze(1).float()

    first = vessels.observation
    learner = make_ppo(first.shape[1], ACTIONS, SEAS_PPO, is_fast)
    return train_ppo(learner, SEAS_PPO, first, step)


def _executions(build: Callable[..., Run]) -> dict[str, Build]:
    """Return the builders of eager updates in float32, and of compiled ones in bfloat16."""
    return {"": build, "bf16 compiled": partial(build, is_fast=True)}


BUILDERS: Builders = {
    "updates_sac": _executions(
        partial(build_off_policy, partial(SAC, OBSERVATION_DIM, ACTION_DIM))
    ),
    "updates_ddpg": _executions(partial(build_off_policy, DDPG)),
    "updates_dqn": _executions(partial(build_off_policy, DQN, is_discrete=True)),
    "updates_ppo": _executions(build_ppo),
    "training_sac": _executions(build_training_sac),
    "training_ppo": _executions(build_training_ppo),
    "seas_ppo": _executions(build_seas_ppo),
}
