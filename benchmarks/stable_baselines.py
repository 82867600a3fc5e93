"""Train with Stable-Baselines3 under the same rules as the runs of this library.

The rules: a number of evaluations during training, the last one at the end; the policy of the best
evaluation is the result, and its score is the mean return of other deterministic episodes.

    python -m benchmarks.stable_baselines algorithm=dqn task=cartpole seed=0 frames=50000 out=a.json
"""

import contextlib
import copy
import json
import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
from pydantic import Field
from torch import nn

from benchmarks.learning.tasks import TASKS, Task
from benchmarks.report import Figures, main, require
from envs.gym.vector import registered
from torchrl_gpu.devices.seeding import Stream, stream_seed
from torchrl_gpu.errors import ConfigurationError

EVALUATION_ENVS = 10

ALGORITHMS = {
    "ppo": "stable_baselines3:PPO",
    "sac": "stable_baselines3:SAC",
    "ddpg": "stable_baselines3:DDPG",
    "dqn": "stable_baselines3:DQN",
    "qrdqn": "sb3_contrib:QRDQN",
}
_MAKE_ENV = "stable_baselines3.common.env_util:make_vec_env"
_MAKE_ATARI_ENV = "stable_baselines3.common.env_util:make_atari_env"
_STACK = "stable_baselines3.common.vec_env:VecFrameStack"
_EVALUATE = "stable_baselines3.common.evaluation:evaluate_policy"
_NOISE = "stable_baselines3.common.noise:NormalActionNoise"


class Convolutions(nn.Sequential):
    """Convolutions of Mnih et al. with any number of channels, for `policy_kwargs`.

    Stable-Baselines3 calls a class for the features with the observation space and asks for
    `features_dim`; its own class has fixed channels.

    Args:
        observation_space: space of the images, `[C, 84, 84]`.
        channels: output channels of the three convolutions, each at least 1.
        features_dim: width of the linear layer, at least 1.
    """

    def __init__(
        self, observation_space: gymnasium.spaces.Box, channels: Sequence[int], features_dim: int
    ) -> None:
        inputs, first, second, third = (observation_space.shape[0], *channels)
        super().__init__(
            nn.Conv2d(inputs, first, 8, 4),
            nn.ReLU(),
            nn.Conv2d(first, second, 4, 2),
            nn.ReLU(),
            nn.Conv2d(second, third, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(third * 7 * 7, features_dim),
            nn.ReLU(),
        )
        self.features_dim = features_dim


def _linear(start: float) -> Any:
    """Return a schedule from `start` down to 0: RL Zoo's `lin_`."""
    return lambda remaining: start * remaining


_CARTPOLE_DQN: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}

# The complete tuned settings of RL Zoo (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/*.yml),
# and for pong those of configs/experiment/pong_quick_dqn.yaml. `n_envs` is the number of
# environments, `n_stack` the number of images in a stack, `noise_std` the standard deviation of the
# action noise, `exploration_frames` the number of frames over which epsilon falls. All other
# settings are the defaults of Stable-Baselines3.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "cartpole"): {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": _linear(1e-3),
        "clip_range": _linear(0.2),
    },
    ("dqn", "cartpole"): {**_CARTPOLE_DQN, "policy_kwargs": {"net_arch": [256, 256]}},
    ("qrdqn", "cartpole"): {
        **_CARTPOLE_DQN,
        "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10},
    },
    ("ppo", "pendulum"): {
        "n_envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    ("sac", "pendulum"): {"learning_rate": 1e-3},
    ("ddpg", "pendulum"): {
        "gamma": 0.98,
        "buffer_size": 200_000,
        "learning_starts": 10_000,
        "noise_std": 0.1,
        "gradient_steps": -1,
        "train_freq": (1, "episode"),
        "learning_rate": 1e-3,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
    ("dqn", "pong"): {
        "n_envs": 8,
        "n_stack": 2,
        "batch_size": 32,
        "buffer_size": 50_000,
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
        "learning_rate": 2.5e-4,
        "learning_starts": 5_000,
        "gamma": 0.99,
        "target_update_interval": 1_000,
        "train_freq": 1,
        "gradient_steps": 2,
        "exploration_frames": 80_000,
        "exploration_final_eps": 0.05,
        "policy_kwargs": {
            "net_arch": [],
            "features_extractor_class": Convolutions,
            "features_extractor_kwargs": {"channels": [8, 16, 16], "features_dim": 128},
        },
    },
}


def make_env(name: str, num_envs: int, stack: int | None = None) -> Any:
    """Return environments of Stable-Baselines3 in one process.

    An Atari game has the transitions that this library's preprocessing gives: the sticky actions of
    its id, one environment step for four frames of the game, and stacks of images of 84 x 84 in
    shades of grey. Stable-Baselines3 also presses FIRE for two steps at the start of an episode.

    Args:
        name: id of the environment.
        num_envs: number of environments, at least 1.
        stack: number of images in a stack of an Atari game; None for other environments.

    Raises:
        ConfigurationError: the extra `atari` is not installed.
    """
    if stack is None:
        return pkgutil.resolve_name(_MAKE_ENV)(name, n_envs=num_envs)
    try:
        registered(name)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    env = pkgutil.resolve_name(_MAKE_ATARI_ENV)(
        name,
        n_envs=num_envs,
        wrapper_kwargs={"terminal_on_life_loss": False},
        env_kwargs={"frameskip": 1},
    )
    return pkgutil.resolve_name(_STACK)(env, stack)


class Judge:
    """Evaluates the policy during training and keeps the best; called after each step.

    Args:
        model: algorithm of Stable-Baselines3.
        task: task to learn.
        frames: environment steps of training.
        seed: seed of the run, which determines the episodes of the evaluations.
        stack: number of images in a stack; None for a task without images.

    Attributes:
        curve: frames, seconds since training began and score of each evaluation.
    """

    def __init__(self, model: Any, task: Task, frames: int, seed: int, stack: int | None) -> None:
        self.curve: list[dict[str, float]] = []
        self._model = model
        self._episodes = task.evaluation_episodes
        self._interval = frames // task.evaluations
        self._frames = frames
        self._seed = seed
        self._env = make_env(task.title, min(EVALUATION_ENVS, self._episodes), stack)
        self._best_score = -float("inf")
        self._best: dict[str, Any] = {}
        self._started = time.perf_counter()

    def __call__(self, _locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        """Evaluate the policy if an evaluation is due, and continue training."""
        due = (len(self.curve) + 1) * self._interval
        if due <= self._model.num_timesteps < self._frames:
            self.judge()
        return True

    def judge(self) -> None:
        """Evaluate the current policy, and keep it if it is the best so far."""
        score = self.score(self._episodes, "selection")
        seconds = time.perf_counter() - self._started
        self.curve.append({"frames": self._model.num_timesteps, "seconds": seconds, "score": score})
        print(json.dumps(self.curve[-1]), flush=True)
        if score >= self._best_score:  # of equal scores the latest, as in this library
            self._best_score = score
            self._best = copy.deepcopy(self._model.policy.state_dict())

    def score(self, episodes: int, stream: Stream) -> float:
        """Return the mean return of a number of deterministic episodes."""
        self._env.seed(stream_seed(self._seed, stream))
        evaluate = pkgutil.resolve_name(_EVALUATE)
        mean, _ = evaluate(self._model, self._env, n_eval_episodes=episodes)
        return float(mean)

    def best_score(self, episodes: int) -> float:
        """Return the mean return of the best policy, in episodes that did not select it."""
        self._model.policy.load_state_dict(self._best)
        return self.score(episodes, "evaluation")


def train(
    *,
    algorithm: Literal["ppo", "sac", "ddpg", "dqn", "qrdqn"],
    task: str,
    seed: Annotated[int, Field(ge=0)],
    frames: Annotated[int, Field(ge=10)],
    out: Path,
) -> Figures:
    """Train one seed and write its result.

    Args:
        algorithm: algorithm of Stable-Baselines3: ppo, sac, ddpg, dqn or qrdqn.
        task: task to learn: cartpole (ppo, dqn, qrdqn), pendulum (ppo, sac, ddpg) or pong (dqn).
        seed: seed of all random numbers, at least 0.
        frames: environment steps of training, at least 10.
        out: JSON file for the result: score, frames and curve of the evaluations during training.

    Raises:
        ConfigurationError: this algorithm and task have no settings, or Stable-Baselines3
            is not installed.
    """
    require("stable_baselines3", "sb3_contrib")
    if (algorithm, task) not in SETTINGS:
        known = ", ".join(f"algorithm={a} task={t}" for a, t in SETTINGS)
        raise ConfigurationError(
            f"algorithm={algorithm} task={task}: no settings; choose one of: {known}"
        )
    torch.set_num_threads(1)
    settings = dict(SETTINGS[algorithm, task])
    if "noise_std" in settings:
        noise = pkgutil.resolve_name(_NOISE)
        settings["action_noise"] = noise(np.zeros(1), settings.pop("noise_std") * np.ones(1))
    if "exploration_frames" in settings:
        settings["exploration_fraction"] = min(1.0, settings.pop("exploration_frames") / frames)
    stack = settings.pop("n_stack", None)
    env = make_env(TASKS[task].title, settings.pop("n_envs", 1), stack)
    build = pkgutil.resolve_name(ALGORITHMS[algorithm])
    policy = "CnnPolicy" if len(env.observation_space.shape) == 3 else "MlpPolicy"
    model = build(policy, env, seed=seed, device="cpu", **settings)
    env.seed(stream_seed(seed, "training"))  # after the model, which also seeds its environment
    judge = Judge(model, TASKS[task], frames, seed, stack)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C only ends training early
        model.learn(frames, callback=judge)
    judge.judge()
    score = judge.best_score(TASKS[task].closing_episodes)
    figures = {"score": score, "frames": model.num_timesteps, "curve": judge.curve}
    out.write_text(json.dumps(figures, indent=2))
    return figures


if __name__ == "__main__":
    main(train)
