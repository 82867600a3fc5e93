"""Jobs of this library."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from agents.base import Agent, OffPolicyAgent
from agents.ddpg import DDPG
from agents.dqn import DQN
from agents.iqn import IQN
from agents.ppo import PPO
from agents.sac import SAC
from benchmarks.peers.jobs import (
    BATCH,
    EPOCHS,
    FRACTIONS,
    GAMMA,
    HIDDEN,
    ROLLOUT_ENVS,
    ROLLOUT_STEPS,
    STORED,
    TARGET_PERIOD,
    UPDATES_A_ROLLOUT,
    WRITERS,
    Build,
    Builders,
    Run,
)
from benchmarks.peers.random_data import random_step, specs
from benchmarks.peers.tasks import CARTPOLE, PENDULUM, PPO_TASK, SAC_TASK
from envs.gym import GymnasiumEnv
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.execution.execution import CompileMode, Execution
from torchrl_gpu.execution.precision import PrecisionName
from trainers.metrics import MetricAccumulator
from trainers.training.experience import RolloutExperience
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")
_NEVER = 10**9

_COMMON: dict[str, Any] = {"hidden_sizes": HIDDEN, "batch_size": BATCH, "gamma": GAMMA}
_HARD_TARGET: dict[str, Any] = {"target_rate": 1.0, "target_period": TARGET_PERIOD, "double": False}
AGENTS: dict[str, tuple[type[OffPolicyAgent], dict[str, Any]]] = {
    "sac": (SAC, {}),
    "ddpg": (DDPG, {}),
    "dqn": (DQN, _HARD_TARGET),
    "iqn": (IQN, {**_HARD_TARGET, "fractions": FRACTIONS, "target_fractions": FRACTIONS}),
}


def build_off_policy(
    algorithm: str, precision: PrecisionName = "fp32", compile: CompileMode = "off"
) -> Run:
    """Return a run of updates with batches from a filled replay, as the trainer does them."""
    build, settings = AGENTS[algorithm]
    constructor: Any = build
    see, act = specs(WRITERS, "continuous" not in build.actions)
    agent: OffPolicyAgent = constructor(see, act, CPU, **_COMMON, **settings)
    # Random observations never follow one another, so that each transition takes two rows.
    replay = agent.build_replay(2 * STORED, WRITERS)
    for _ in range(STORED // WRITERS):
        replay.extend(random_step(WRITERS, act))
    execution, metrics = Execution(CPU, precision, compile), MetricAccumulator()

    def run(updates: int) -> None:
        for _ in range(updates):
            metrics.add(execution.update(agent, replay.sample(BATCH)).metrics)

    run(3)
    return run


def build_ppo(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    see, act = specs(ROLLOUT_ENVS, is_discrete=False)
    agent = PPO(see, act, CPU, **_COMMON, rollout_length=ROLLOUT_STEPS, epochs=EPOCHS)
    experience = RolloutExperience(agent)
    for _ in range(ROLLOUT_STEPS):
        experience.store(random_step(ROLLOUT_ENVS, act))
    execution, metrics = Execution(CPU, precision, compile), MetricAccumulator()

    def run(updates: int) -> None:
        for _ in range(updates // UPDATES_A_ROLLOUT):
            for batch in experience.batches():
                metrics.add(execution.update(agent, batch).metrics)

    run(UPDATES_A_ROLLOUT)
    return run


class Training:
    """A training of this library, continued at each call.

    Args:
        env: environment to train in.
        agent: agent to train.
        settings: further arguments of the trainer.
    """

    def __init__(self, env: Environment, agent: Agent, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._trainer = TorchRLTrainer(
            env,
            agent,
            Path(self._folder.name),
            total_frames=_NEVER,
            save_replay=False,
            show_progress=False,
            **settings,
        )

    def __call__(self, frames: int) -> None:
        """Train for a number of frames, and write a checkpoint."""
        self._trainer.total_frames = self._trainer.frames + frames
        self._trainer.train()


def build_training_sac(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of SAC on Pendulum-v1."""
    env = GymnasiumEnv(name=PENDULUM, num_envs=1)
    agent = SAC(
        observation_spec(env),
        action_spec(env),
        CPU,
        **_COMMON,
        learning_rate=SAC_TASK.learning_rate,
        utd_ratio=1.0,
    )
    return Training(
        env,
        agent,
        random_frames=SAC_TASK.random_frames,
        replay_capacity=SAC_TASK.capacity,
        execution=Execution(CPU, precision, compile),
    )


def build_training_ppo(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of PPO on CartPole-v1."""
    env = GymnasiumEnv(name=CARTPOLE, num_envs=PPO_TASK.num_envs)
    agent = PPO(
        observation_spec(env),
        action_spec(env),
        CPU,
        hidden_sizes=HIDDEN,
        batch_size=BATCH,
        rollout_length=PPO_TASK.rollout_length,
        epochs=PPO_TASK.epochs,
        learning_rate=PPO_TASK.learning_rate,
        gamma=PPO_TASK.gamma,
        gae_lambda=PPO_TASK.gae_lambda,
    )
    return Training(env, agent, execution=Execution(CPU, precision, compile))


_PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "bf16")
_MODES: tuple[CompileMode, ...] = ("off", "default")


def _variants(build: Any, *arguments: Any) -> dict[str, Build]:
    """Return the builders of each precision, eager and compiled; fp32 and eager is the default."""
    return {
        " ".join(
            word
            for word, is_said in ((precision, precision != "fp32"), ("compiled", mode != "off"))
            if is_said
        ): partial(build, *arguments, precision=precision, compile=mode)
        for mode, precision in product(_MODES, _PRECISIONS)
    }


def extremes(build: Any) -> dict[str, Build]:
    """Return the builders of the default and of the fastest of `_variants`."""
    variants = _variants(build)
    return {name: variants[name] for name in ("", "bf16 compiled")}


BUILDERS: Builders = {
    **{f"updates_{name}": _variants(build_off_policy, name) for name in AGENTS},
    "updates_ppo": _variants(build_ppo),
    "training_sac": extremes(build_training_sac),
    "training_ppo": extremes(build_training_ppo),
}
