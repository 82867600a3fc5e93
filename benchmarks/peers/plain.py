"""Jobs in plain PyTorch, without a library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gymnasium as gym
import torch
from torch import Tensor

from benchmarks.peers.jobs import (
    ACTION_DIM,
    NUM_ACTIONS,
    OBSERVATION_DIM,
    ROLLOUT_ENVS,
    ROLLOUT_STEPS,
    STORED,
    UPDATES_A_ROLLOUT,
    Builders,
    Run,
)
from benchmarks.peers.plain_agents import DDPG, DQN, PPO, SAC, Batch, Replay, Rollout
from benchmarks.peers.tasks import CARTPOLE, PENDULUM, PPO_TASK, SAC_TASK


def random_batch(count: int, is_discrete: bool) -> Batch:
    """Return random transitions `[count, ...]`, none of which terminates."""
    action = torch.rand(count, ACTION_DIM) * 2.0 - 1.0
    if is_discrete:
        action = torch.randint(NUM_ACTIONS, (count, 1))
    return Batch(
        torch.randn(count, OBSERVATION_DIM),
        action,
        torch.randn(count, 1),
        torch.zeros(count, 1),
        torch.randn(count, OBSERVATION_DIM),
    )


def build_off_policy(build: Callable[[], SAC | DDPG | DQN], is_discrete: bool = False) -> Run:
    """Return a run of updates with batches from a filled replay."""
    learner = build()
    replay = Replay(STORED, random_batch(1, is_discrete))
    replay.add(random_batch(STORED, is_discrete))

    def run(updates: int) -> None:
        for _ in range(updates):
            learner.update(replay.sample())

    run(3)
    return run


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    learner = PPO(OBSERVATION_DIM, ACTION_DIM, is_discrete=False)
    observation = torch.randn(ROLLOUT_STEPS, ROLLOUT_ENVS, OBSERVATION_DIM)
    with torch.no_grad():
        distribution = learner.distribution(observation)
        action = distribution.sample()
        rollout = Rollout(
            observation,
            action,
            learner.log_prob(distribution, action),
            learner.critic(observation).squeeze(-1),
            torch.randn(ROLLOUT_STEPS, ROLLOUT_ENVS),
            torch.zeros(ROLLOUT_STEPS, ROLLOUT_ENVS),
        )

    def run(updates: int) -> None:
        for _ in range(updates // UPDATES_A_ROLLOUT):
            learner.update(rollout, rollout.value[-1])

    run(UPDATES_A_ROLLOUT)
    return run


def build_training_sac() -> Run:
    """Return a run of frames of SAC on Pendulum-v1."""
    env = gym.make(PENDULUM)
    learner = SAC(3, 1, SAC_TASK.learning_rate)
    bound = float(env.action_space.high[0])
    one = torch.zeros(1, 1)
    replay = Replay(SAC_TASK.capacity, Batch(torch.zeros(1, 3), one, one, one, torch.zeros(1, 3)))
    state: dict[str, Tensor] = {"observation": torch.as_tensor(env.reset(seed=0)[0])}

    def step(is_random: bool) -> None:
        with torch.no_grad():
            action = learner.act(state["observation"])[0]
        if is_random:
            action = torch.rand(1) * 2.0 - 1.0
        numbers, reward, terminated, truncated, _ = env.step(bound * action.numpy())
        after = torch.as_tensor(numbers)
        replay.add(
            Batch(
                state["observation"].unsqueeze(0),
                action.unsqueeze(0),
                torch.tensor([[float(reward)]]),
                torch.tensor([[float(terminated)]]),
                after.unsqueeze(0),
            )
        )
        ended = terminated or truncated
        state["observation"] = torch.as_tensor(env.reset()[0]) if ended else after

    def run(frames: int) -> None:
        for _ in range(frames):
            step(is_random=False)
            learner.update(replay.sample())

    for _ in range(SAC_TASK.random_frames):
        step(is_random=True)
    return run


def build_training_ppo() -> Run:
    """Return a run of frames of PPO on CartPole-v1; a time limit ends an episode like a fall."""
    envs = gym.make_vec(
        CARTPOLE,
        PPO_TASK.num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
    )
    task = PPO_TASK
    learner = PPO(4, 2, True, task.learning_rate, task.epochs, task.gamma, task.gae_lambda)
    state: dict[str, Tensor] = {"observation": torch.as_tensor(envs.reset(seed=0)[0])}

    @torch.no_grad()
    def step() -> Rollout:
        observation = state["observation"]
        distribution = learner.distribution(observation)
        action = distribution.sample()
        numbers, reward, terminated, truncated, _ = envs.step(action.numpy())
        state["observation"] = torch.as_tensor(numbers)
        return Rollout(
            observation,
            action,
            learner.log_prob(distribution, action),
            learner.critic(observation).squeeze(-1),
            torch.as_tensor(reward, dtype=torch.float32),
            torch.as_tensor(terminated | truncated, dtype=torch.float32),
        )

    def run(frames: int) -> None:
        for _ in range(frames // (task.num_envs * task.rollout_length)):
            steps = [step() for _ in range(task.rollout_length)]
            rollout = Rollout(*(torch.stack(entries) for entries in zip(*steps, strict=True)))
            with torch.no_grad():
                last_value = learner.critic(state["observation"]).squeeze(-1)
            learner.update(rollout, last_value)

    return run


BUILDERS: Builders = {
    "updates_sac": {"": partial(build_off_policy, partial(SAC, OBSERVATION_DIM, ACTION_DIM))},
    "updates_ddpg": {"": partial(build_off_policy, DDPG)},
    "updates_dqn": {"": partial(build_off_policy, DQN, is_discrete=True)},
    "updates_ppo": {"": build_ppo},
    "training_sac": {"": build_training_sac},
    "training_ppo": {"": build_training_ppo},
}
