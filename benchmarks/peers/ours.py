"""Jobs of this library."""

from collections.abc import Callable
from functools import partial
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
    NEVER,
    Training,
    build_agent,
    kind_of,
    random_transitions,
    specs,
)
from benchmarks.measuring import Run, times
from benchmarks.peers import jobs
from benchmarks.peers.jobs import (
    CARTPOLE_PPO,
    GAMMA,
    RANDOM_PPO,
    SEAS_PPO,
    Build,
    Builders,
    PPOTask,
)
from benchmarks.peers.seas import make_seas
from envs.gym import GymnasiumEnv
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.execution.execution import Execution
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


def learner(agent: Agent, execution: Execution) -> Callable[[TensorDictBase], None]:
    """Return a function that takes a gradient step, and keeps the metrics as a trainer does."""
    metrics = MetricAccumulator()

    def learn(batch: TensorDictBase) -> None:
        metrics.add(execution.update(agent, batch).metrics)

    return learn


def build_off_policy(algorithm: str, execution: Execution) -> Run:
    """Return a run of updates with batches from a filled replay, as the trainer does them."""
    agent_class, settings = AGENTS[algorithm]
    see, act = specs(jobs.WRITERS, kind=kind_of(agent_class))
    agent = build_agent(agent_class, see, act, **_COMMON, **settings)
    assert isinstance(agent, OffPolicyAgent)
    # Random observations never follow one another, so that each transition takes two rows.
    replay = agent.build_replay(2 * jobs.STORED)
    for _ in range(jobs.STORED // jobs.WRITERS):
        replay.extend(random_transitions(see, act))
    learn = learner(agent, execution)
    return times(lambda: learn(replay.sample(BATCH)))


def make_ppo(see: Composite, act: TensorSpec, task: PPOTask) -> PPO:
    """Return PPO for the specs of observations and actions."""
    agent = build_agent(PPO, see, act, hidden_sizes=HIDDEN, **task._asdict())
    assert isinstance(agent, PPO)
    return agent


def build_ppo(execution: Execution) -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    see, act = specs(RANDOM_PPO.num_envs)
    agent = make_ppo(see, act, RANDOM_PPO)
    experience = RolloutExperience(agent, execution)
    for _ in range(RANDOM_PPO.rollout_length):
        experience.store(random_transitions(see, act))
    learn = learner(agent, execution)

    def learn_from_the_rollout() -> None:
        for batch in experience.batches():
            learn(batch)

    return times(learn_from_the_rollout, RANDOM_PPO.updates)


def train_sac(execution: Execution) -> Run:
    """Return a run of frames of SAC on Pendulum-v1."""
    env = GymnasiumEnv(name=jobs.PENDULUM, num_envs=1)
    settings = {**_COMMON, "learning_rate": jobs.LEARNING_RATE, "utd_ratio": 1.0}
    agent = build_agent(SAC, observation_spec(env), action_spec(env), **settings)
    return Training(
        env,
        agent,
        random_frames=jobs.RANDOM_FRAMES,
        replay_capacity=jobs.CAPACITY,
        execution=execution,
    )


def train_ppo(make_env: Callable[[], EnvBase], task: PPOTask, execution: Execution) -> Run:
    """Return a run of frames of PPO on the vectors that an environment shows."""
    env = make_env()
    agent = make_ppo(observation_spec(env, ["observation"]), action_spec(env), task)
    return Training(env, agent, execution=execution)


def _executions(build: Callable[[Execution], Run]) -> dict[str, Build]:
    """Return the builders of the default execution, that of short runs and that of long ones."""

    def build_long() -> Run:
        execution = Execution()
        execution.plan(NEVER)
        return build(execution)

    return {"": lambda: build(Execution(CPU, "fp32", "off")), "in long runs": build_long}


_CARTPOLES = partial(GymnasiumEnv, name=jobs.CARTPOLE, num_envs=CARTPOLE_PPO.num_envs)

BUILDERS: Builders = {
    **{f"updates_{name}": _executions(partial(build_off_policy, name)) for name in AGENTS},
    "updates_ppo": _executions(build_ppo),
    "training_sac": _executions(train_sac),
    "training_ppo": _executions(partial(train_ppo, _CARTPOLES, CARTPOLE_PPO)),
    "seas_ppo": _executions(partial(train_ppo, make_seas, SEAS_PPO)),
}
