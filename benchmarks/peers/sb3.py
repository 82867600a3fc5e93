"""Jobs of Stable-Baselines3 and, for QR-DQN, of sb3-contrib."""

import copy
import pkgutil
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.fixture import BATCH, HIDDEN
from benchmarks.measuring import Run, times
from benchmarks.peers import jobs
from benchmarks.peers.jobs import (
    CARTPOLE_PPO,
    GAMMA,
    RANDOM_PPO,
    Build,
    Builders,
    PPOTask,
    RandomEnv,
)
from benchmarks.peers.plain_agents import random_batch

_OFF_POLICY: dict[str, Any] = {
    "batch_size": BATCH,
    "buffer_size": jobs.STORED,
    "gamma": GAMMA,
    "policy_kwargs": {"net_arch": list(HIDDEN)},
}
_DISCRETE = {**_OFF_POLICY, "tau": 1.0, "target_update_interval": jobs.TARGET_PERIOD}
_SAC: dict[str, Any] = {
    "learning_rate": jobs.LEARNING_RATE,
    "learning_starts": jobs.RANDOM_FRAMES,
    "buffer_size": jobs.CAPACITY,
    "batch_size": BATCH,
    "train_freq": 1,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": list(HIDDEN)},
}
_NO_LOGGER = "stable_baselines3.common.logger:Logger"
_MAKE_ENV = "stable_baselines3.common.env_util:make_vec_env"


def _model(name: str, env: Any, **settings: Any) -> Any:
    """Return an algorithm whose logger writes nowhere."""
    build = pkgutil.resolve_name(name)
    device = {} if name.startswith("sbx") else {"device": "cpu"}
    # A copy, because algorithms write into their arguments.
    model = build("MlpPolicy", env, seed=0, **device, **copy.deepcopy(settings))
    model.set_logger(pkgutil.resolve_name(_NO_LOGGER)(folder=None, output_formats=[]))
    return model


def build_off_policy(name: str, is_discrete: bool, at_once: int = 1, **settings: Any) -> Run:
    """Return a run of updates with batches from a filled replay, `at_once` in each call of `train`.

    Args:
        name: class of the algorithm, `package:Class`.
        is_discrete: whether actions are numbers or vectors.
        at_once: number of updates in each call of `train`, which divides the units.
        settings: further arguments of the algorithm.
    """
    common = _DISCRETE if is_discrete else _OFF_POLICY
    model = _model(name, RandomEnv(is_discrete), **{**common, **settings})
    batch = random_batch(jobs.STORED, is_discrete)
    arrays = (x.unsqueeze(1).numpy() for x in batch)  # rows of one environment
    for observation, action, reward, ended, after in zip(*arrays, strict=True):
        model.replay_buffer.add(observation, after, action, reward[:, 0], ended[:, 0], [{}])
    return times(partial(model.train, gradient_steps=at_once, batch_size=BATCH), at_once)


def ppo_settings(name: str, task: PPOTask) -> dict[str, Any]:
    """Return the arguments of PPO, `package:Class`."""
    relu = "jax.nn:relu" if name.startswith("sbx") else "torch.nn:ReLU"  # tanh by default
    activation = pkgutil.resolve_name(relu)
    return {
        "learning_rate": task.learning_rate,
        "n_steps": task.rollout_length,
        "batch_size": task.batch_size,
        "n_epochs": task.epochs,
        "gamma": task.gamma,
        "gae_lambda": task.gae_lambda,
        "policy_kwargs": {"net_arch": list(HIDDEN), "activation_fn": activation},
    }


def build_ppo(name: str) -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    task = RANDOM_PPO
    env = pkgutil.resolve_name(_MAKE_ENV)(lambda: RandomEnv(is_discrete=False), task.num_envs)
    model = _model(name, env, **ppo_settings(name, task))
    rollout = model.rollout_buffer
    _, callback = model._setup_learn(task.frames, None)
    model.collect_rollouts(model.env, callback, rollout, task.rollout_length)
    collected = {k: v.copy() for k, v in vars(rollout).items() if isinstance(v, np.ndarray)}
    last_values, ends = torch.zeros(task.num_envs), np.zeros(task.num_envs)

    def learn_from_the_rollout() -> None:
        for key, array in collected.items():  # `train` changes the shapes of the arrays
            setattr(rollout, key, array)
        rollout.generator_ready = False
        rollout.compute_returns_and_advantage(last_values, ends)
        model.train()

    return times(learn_from_the_rollout, task.updates)


def build_training(name: str, task: str, num_envs: int, settings: dict[str, Any]) -> Run:
    """Return a run of frames of training in a Gymnasium environment."""
    env = pkgutil.resolve_name(_MAKE_ENV)(task, num_envs)
    return partial(_model(name, env, **settings).learn, reset_num_timesteps=False)


def trainings(package: str) -> dict[str, dict[str, Build]]:
    """Return the builders of both training jobs in a package."""
    sac, ppo = f"{package}:SAC", f"{package}:PPO"
    return {
        "training_sac": {"": partial(build_training, sac, jobs.PENDULUM, 1, _SAC)},
        "training_ppo": {"": partial(train_ppo, ppo)},
    }


def train_ppo(name: str) -> Run:
    """Return a run of frames of PPO on CartPole-v1."""
    settings = ppo_settings(name, CARTPOLE_PPO)
    return build_training(name, jobs.CARTPOLE, CARTPOLE_PPO.num_envs, settings)


def _off_policy(name: str, is_discrete: bool = False, **settings: Any) -> Build:
    return partial(build_off_policy, f"stable_baselines3:{name}", is_discrete, **settings)


def _quantiles(number: int) -> Build:
    settings = {**_OFF_POLICY["policy_kwargs"], "n_quantiles": number}
    return partial(build_off_policy, "sb3_contrib:QRDQN", True, policy_kwargs=settings)


BUILDERS: Builders = {
    "updates_sac": {"": _off_policy("SAC")},
    "updates_ddpg": {"": _off_policy("DDPG")},
    "updates_dqn": {"": _off_policy("DQN", is_discrete=True)},
    # 200 quantiles are the default, FRACTIONS as many as IQN draws here.
    "updates_iqn": {
        f"QR-DQN {number} quantiles": _quantiles(number) for number in (200, jobs.FRACTIONS)
    },
    "updates_ppo": {"": partial(build_ppo, "stable_baselines3:PPO")},
    **trainings("stable_baselines3"),
}
