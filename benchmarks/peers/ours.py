"""Jobs of this library."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

from tensordict import TensorDictBase
from torchrl.data import Composite, TensorSpec
from torchrl.envs import EnvBase

from agents.base import Agent, OffPolicyAgent
from agents.ddpg import DDPG
from agents.dqn import DQN
from agents.iqn import IQN
from agents.ppo import PPO
from agents.sac import SAC
from benchmarks.fixture import (
    BATCH,
    CPU,
    HIDDEN,
    Training,
    build_agent,
    kind_of,
    random_transitions,
    specs,
)
from benchmarks.measuring import Run, times
from benchmarks.peers import jobs
from benchmarks.peers.jobs import CARTPOLE_PPO, GAMMA, RANDOM_PPO, Build, Builders, PPOTask, every
from envs.gym import GymnasiumEnv
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.execution.execution import CompileMode, Execution
from torchrl_gpu.execution.precision import PrecisionName
from trainers.metrics import MetricAccumulator
from trainers.training.experience import RolloutExperience

_COMMON: dict[str, Any] = {"hidden_sizes": HIDDEN, "batch_size": BATCH, "gamma": GAMMA}
_HARD_TARGET: dict[str, Any] = {
    "target_rate": 1.0,
    "target_period": jobs.TARGET_PERIOD,
    "double": False,
}
_FRACTIONS = {"fractions": jobs.FRACTIONS, "target_fractions": jobs.FRACTIONS}
AGENTS: dict[str, tuple[type[OffPolicyAgent], dict[str, Any]]] = {
    "sac": (SAC, {}),
    "ddpg": (DDPG, {}),
    "dqn": (DQN, _HARD_TARGET),
    "iqn": (IQN, {**_HARD_TARGET, **_FRACTIONS}),
}


class Learner:
    """Gradient steps of an agent, with the metrics that a trainer keeps.

    Args:
        agent: agent to update.
        precision: number format of the updates.
        compile: compiler mode of the updates.
    """

    def __init__(self, agent: Agent, precision: PrecisionName, compile: CompileMode) -> None:
        self._agent, self._execution = agent, Execution(CPU, precision, compile)
        self._metrics = MetricAccumulator()

    def __call__(self, batch: TensorDictBase) -> None:
        """Take one gradient step."""
        self._metrics.add(self._execution.update(self._agent, batch).metrics)


def build_off_policy(
    algorithm: str, precision: PrecisionName = "fp32", compile: CompileMode = "off"
) -> Run:
    """Return a run of updates with batches from a filled replay, as the trainer does them."""
    agent_class, settings = AGENTS[algorithm]
    see, act = specs(jobs.WRITERS, kind=kind_of(agent_class))
    agent = build_agent(agent_class, see, act, **_COMMON, **settings)
    assert isinstance(agent, OffPolicyAgent)
    # Random observations never follow one another, so that each transition takes two rows.
    replay = agent.build_replay(2 * jobs.STORED)
    for _ in range(jobs.STORED // jobs.WRITERS):
        replay.extend(random_transitions(see, act))
    learn = Learner(agent, precision, compile)
    return times(lambda: learn(replay.sample(BATCH)))


def make_ppo(see: Composite, act: TensorSpec, task: PPOTask) -> PPO:
    """Return PPO for the specs of observations and actions."""
    return PPO(
        see,
        act,
        CPU,
        hidden_sizes=HIDDEN,
        batch_size=task.batch_size,
        rollout_length=task.rollout_length,
        epochs=task.epochs,
        learning_rate=task.learning_rate,
        gamma=task.gamma,
        gae_lambda=task.gae_lambda,
    )


def build_ppo(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    see, act = specs(RANDOM_PPO.num_envs)
    agent = make_ppo(see, act, RANDOM_PPO)
    experience = RolloutExperience(agent)
    for _ in range(RANDOM_PPO.rollout_length):
        experience.store(random_transitions(see, act))
    learn = Learner(agent, precision, compile)

    def learn_from_the_rollout() -> None:
        for batch in experience.batches():
            learn(batch)

    return every(RANDOM_PPO.updates, learn_from_the_rollout)


def build_training_sac(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of SAC on Pendulum-v1."""
    env = GymnasiumEnv(name=jobs.PENDULUM, num_envs=1)
    settings = {**_COMMON, "learning_rate": jobs.LEARNING_RATE, "utd_ratio": 1.0}
    agent = build_agent(SAC, observation_spec(env), action_spec(env), **settings)
    return Training(
        env,
        agent,
        random_frames=jobs.RANDOM_FRAMES,
        replay_capacity=jobs.CAPACITY,
        execution=Execution(CPU, precision, compile),
    )


def train_ppo(env: EnvBase, task: PPOTask, execution: Execution) -> Run:
    """Return a run of frames of PPO on the vectors that an environment shows."""
    agent = make_ppo(observation_spec(env, ["observation"]), action_spec(env), task)
    return Training(env, agent, execution=execution)


def build_training_ppo(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of PPO on CartPole-v1."""
    env = GymnasiumEnv(name=jobs.CARTPOLE, num_envs=CARTPOLE_PPO.num_envs)
    return train_ppo(env, CARTPOLE_PPO, Execution(CPU, precision, compile))


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
