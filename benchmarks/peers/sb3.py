"""Jobs of Stable-Baselines3 and, for QR-DQN, of sb3-contrib."""

from __future__ import annotations

import copy
import pkgutil
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.jobs import (
    ACTION_DIM,
    BATCH,
    EPOCHS,
    FRACTIONS,
    GAMMA,
    HIDDEN,
    NUM_ACTIONS,
    OBSERVATION_DIM,
    ROLLOUT_ENVS,
    ROLLOUT_STEPS,
    STORED,
    TARGET_PERIOD,
    UPDATES_A_ROLLOUT,
    Build,
    Builders,
    RandomEnv,
    Run,
)
from benchmarks.peers.tasks import CARTPOLE, PENDULUM, PPO_TASK, SAC_TASK

_OFF_POLICY: dict[str, Any] = {
    "batch_size": BATCH,
    "buffer_size": STORED,
    "gamma": GAMMA,
    "policy_kwargs": {"net_arch": list(HIDDEN)},
}
_DISCRETE = {**_OFF_POLICY, "tau": 1.0, "target_update_interval": TARGET_PERIOD}
_NO_LOGGER = "stable_baselines3.common.logger:Logger"
_MAKE_ENV = "stable_baselines3.common.env_util:make_vec_env"


def _networks(name: str) -> dict[str, Any]:
    """Return the settings of the networks of an algorithm, `package:Class`."""
    relu = "jax.nn:relu" if name.startswith("sbx") else "torch.nn:ReLU"
    # PPO alone has tanh by default.
    activation = {"activation_fn": pkgutil.resolve_name(relu)} if name.endswith(":PPO") else {}
    return {"net_arch": list(HIDDEN), **activation}


def _model(name: str, env: Any, **settings: Any) -> Any:
    """Return an algorithm whose logger writes nowhere."""
    build = pkgutil.resolve_name(name)
    device = {} if name.startswith("sbx") else {"device": "cpu"}
    # A copy, because algorithms write into their arguments.
    model = build("MlpPolicy", env, seed=0, **device, **copy.deepcopy(settings))
    model.set_logger(pkgutil.resolve_name(_NO_LOGGER)(folder=None, output_formats=[]))
    return model


def fill(replay: Any, is_discrete: bool) -> None:
    """Fill a replay of Stable-Baselines3 with random transitions."""
    numbers = np.random.default_rng(0)
    for _ in range(STORED):
        action: Any = numbers.uniform(-1.0, 1.0, (1, ACTION_DIM))
        if is_discrete:
            action = numbers.integers(NUM_ACTIONS, size=(1, 1))
        replay.add(
            numbers.standard_normal((1, OBSERVATION_DIM), dtype=np.float32),
            numbers.standard_normal((1, OBSERVATION_DIM), dtype=np.float32),
            action,
            numbers.standard_normal(1, dtype=np.float32),
            np.zeros(1),
            [{}],
        )


def build_off_policy(name: str, is_discrete: bool, at_once: int = 1, **settings: Any) -> Run:
    """Return a run of updates by `train`, `at_once` of them in each call.

    Args:
        name: class of the algorithm, `package:Class`.
        is_discrete: whether actions are numbers or vectors.
        at_once: number of updates in each call of `train`, which divides the units.
        settings: further arguments of the algorithm.
    """
    common = _DISCRETE if is_discrete else _OFF_POLICY
    model = _model(name, RandomEnv(is_discrete), **{**common, **settings})
    fill(model.replay_buffer, is_discrete)

    def run(updates: int) -> None:
        for _ in range(updates // at_once):
            model.train(gradient_steps=at_once, batch_size=BATCH)

    run(3 * at_once)
    return run


def build_ppo(name: str) -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    env = pkgutil.resolve_name(_MAKE_ENV)(lambda: RandomEnv(is_discrete=False), ROLLOUT_ENVS)
    model = _model(
        name,
        env,
        n_steps=ROLLOUT_STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        policy_kwargs=_networks(name),
    )
    rollout = model.rollout_buffer
    _, callback = model._setup_learn(ROLLOUT_ENVS * ROLLOUT_STEPS, None)
    model.collect_rollouts(model.env, callback, rollout, ROLLOUT_STEPS)
    collected = {k: v.copy() for k, v in vars(rollout).items() if isinstance(v, np.ndarray)}
    last_values, ends = torch.zeros(ROLLOUT_ENVS), np.zeros(ROLLOUT_ENVS)

    def run(updates: int) -> None:
        for _ in range(updates // UPDATES_A_ROLLOUT):
            for key, array in collected.items():  # `train` changes the shapes of the arrays
                setattr(rollout, key, array)
            rollout.generator_ready = False
            rollout.compute_returns_and_advantage(last_values, ends)
            model.train()

    run(UPDATES_A_ROLLOUT)
    return run


def build_training(name: str, task: str, num_envs: int, settings: dict[str, Any]) -> Run:
    """Return a run of frames of training in a Gymnasium environment."""
    env = pkgutil.resolve_name(_MAKE_ENV)(lambda: gym.make(task), num_envs)
    model = _model(name, env, **settings, policy_kwargs=_networks(name))

    def run(frames: int) -> None:
        model.learn(frames, reset_num_timesteps=False)

    return run


SAC_SETTINGS: dict[str, Any] = {
    "learning_rate": SAC_TASK.learning_rate,
    "learning_starts": SAC_TASK.random_frames,
    "buffer_size": SAC_TASK.capacity,
    "batch_size": BATCH,
    "train_freq": 1,
    "gradient_steps": 1,
}
PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": PPO_TASK.learning_rate,
    "n_steps": PPO_TASK.rollout_length,
    "batch_size": BATCH,
    "n_epochs": PPO_TASK.epochs,
    "gamma": PPO_TASK.gamma,
    "gae_lambda": PPO_TASK.gae_lambda,
}


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
        f"QR-DQN {number} quantiles": _quantiles(number) for number in (200, FRACTIONS)
    },
    "updates_ppo": {"": partial(build_ppo, "stable_baselines3:PPO")},
    "training_sac": {
        "": partial(build_training, "stable_baselines3:SAC", PENDULUM, 1, SAC_SETTINGS)
    },
    "training_ppo": {
        "": partial(
            build_training, "stable_baselines3:PPO", CARTPOLE, PPO_TASK.num_envs, PPO_SETTINGS
        )
    },
}
