"""Measure frames per second of DQN on Pong beside Stable-Baselines3's DQN, in turns in one run.

Both have the network of Mnih et al. (Nature 518, 2015), the same number of environments in one
process, and one update with 32 transitions for every four frames. A frame is an environment step,
that is four frames of the game.

    python -m benchmarks.atari
"""

from __future__ import annotations

import pkgutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from agents.dqn import DQN
from agents.modules.encoders import ObservationEncoderFactory
from benchmarks.atari_peer import make_atari_env
from benchmarks.extra import require
from benchmarks.report import print_figures, print_machine, print_table
from envs.gym import GymnasiumEnv
from envs.gym.vector import Vectorization
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.environments.specs import action_spec, observation_spec
from trainers.training.experience import ReplayExperience
from trainers.training.trainer import TorchRLTrainer

GAME = "ALE/Pong-v5"
LEARNING_RATE, MAX_NORM, EPSILON = 6.25e-5, 10.0, 0.1
BATCH, FRAMES_PER_UPDATE, TARGET_FRAMES = 32, 4, 1_000
REPLAY = 20_000
_NEVER = 10**9


class Ours:
    """DQN of this library.

    Args:
        num_envs: number of environments, a multiple of 4.
        vectorization: execution of the environments, see `GymnasiumEnv`.
        threads: number of threads of ALE's own vectorized code, at least 1.
    """

    def __init__(self, num_envs: int, vectorization: Vectorization, threads: int) -> None:
        options = {"num_threads": threads} if vectorization == "vector_entry_point" else {}
        env = GymnasiumEnv(
            name=GAME, num_envs=num_envs, vectorization=vectorization, options=options
        )
        agent = DQN(
            observation_spec(env),
            action_spec(env),
            torch.device("cpu"),
            hidden_sizes=(),  # the layer of 512 units is part of the encoder
            encoder=ObservationEncoderFactory(convolutions="nature"),
            double=False,
            learning_rate=LEARNING_RATE,
            target_rate=1.0,
            target_period=TARGET_FRAMES // FRAMES_PER_UPDATE,
            max_gradient_norm=MAX_NORM,
            epsilon_start=EPSILON,
            epsilon_end=EPSILON,
            batch_size=BATCH,
            utd_ratio=1 / FRAMES_PER_UPDATE,
        )
        self._folder = tempfile.TemporaryDirectory()
        self._trainer = TorchRLTrainer(
            env,
            agent,
            Path(self._folder.name),
            total_frames=_NEVER,
            random_frames=10 * num_envs,
            replay_capacity=REPLAY,
            save_replay=False,
            show_progress=False,
        )
        experience = self._trainer.experience
        assert isinstance(experience, ReplayExperience)
        self._replay = experience.replay

    def collect(self, frames: int) -> None:
        """Act by the policy and store the transitions, without updates."""
        for _ in range(frames // self._trainer.num_envs):
            self._replay.extend(self._trainer.collect())

    def train(self, frames: int) -> None:
        """Train for a number of frames."""
        self._trainer.total_frames = self._trainer.frames + frames
        self._trainer.train()

    def close(self) -> None:
        """Close the environments and the trainer."""
        self._trainer.close()
        self._trainer.env.close()
        self._folder.cleanup()


class Theirs:
    """DQN of Stable-Baselines3.

    Args:
        num_envs: number of environments, a multiple of 4.
    """

    def __init__(self, num_envs: int) -> None:
        common: dict[str, Any] = {
            "policy": "CnnPolicy",
            "learning_rate": LEARNING_RATE,
            "max_grad_norm": MAX_NORM,
            "batch_size": BATCH,
            "train_freq": 1,
            "target_update_interval": TARGET_FRAMES,
            "exploration_initial_eps": EPSILON,
            "exploration_final_eps": EPSILON,
            "buffer_size": REPLAY,
            "learning_starts": 10 * num_envs,
            # Stores each stack once instead of twice, as the documentation of DQN suggests.
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
            "device": "cpu",
        }
        build = pkgutil.resolve_name("stable_baselines3:DQN")
        updates = num_envs // FRAMES_PER_UPDATE
        self._collector = build(**common, env=make_atari_env(GAME, num_envs), gradient_steps=0)
        self._learner = build(**common, env=make_atari_env(GAME, num_envs), gradient_steps=updates)

    def collect(self, frames: int) -> None:
        """Act by the policy and store the transitions, without updates."""
        self._collector.learn(frames, reset_num_timesteps=False)

    def train(self, frames: int) -> None:
        """Train for a number of frames."""
        self._learner.learn(frames, reset_num_timesteps=False)


def rate(run: Callable[[int], None], frames: int) -> float:
    """Return the frames per second of `run(frames)`."""
    start = time.perf_counter()
    run(frames)
    return frames / (time.perf_counter() - start)


def measure(
    *,
    num_envs: Annotated[int, Field(ge=4, multiple_of=4)] = 8,
    vectorization: Vectorization = "vector_entry_point",
    threads: Annotated[int, Field(ge=1)] = 1,
    rounds: Annotated[int, Field(ge=1)] = 7,
    frames: Annotated[int, Field(ge=8)] = 160,
) -> int:
    """Measure collecting and training in turns, and print the medians.

    Args:
        num_envs: number of environments, a multiple of 4 (8).
        vectorization: execution of this library's environments: sync, async or vector_entry_point
            (vector_entry_point, as in the presets).
        threads: number of CPU threads of PyTorch, and of ALE's own vectorized code, at least 1 (1).
        rounds: number of rounds after a first one that warms up, at least 1 (7).
        frames: number of frames per measurement of training, at least 8; collecting takes four
            times as many (160).

    Raises:
        ConfigurationError: Stable-Baselines3 or the extra `atari` is not installed.
    """
    require("stable_baselines3")
    torch.set_num_threads(threads)
    print_machine()
    ours, theirs = Ours(num_envs, vectorization, threads), Theirs(num_envs)
    measures: dict[tuple[str, str], Callable[[], float]] = {
        ("collecting", "sb3"): lambda: rate(theirs.collect, 4 * frames),
        ("collecting", "ours"): lambda: rate(ours.collect, 4 * frames),
        ("training", "sb3"): lambda: rate(theirs.train, frames),
        ("training", "ours"): lambda: rate(ours.train, frames),
    }
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in measures}
    for turn in range(rounds + 1):
        for key, run in measures.items():
            speed = run()
            if turn > 0:  # the first round warms up
                samples[key].append(speed)
    ours.close()

    speeds = {key: statistics.median(values) for key, values in samples.items()}
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for kind, text in (
        ("collecting", "collecting: acting and storing"),
        ("training", f"training: one update for {FRAMES_PER_UPDATE} frames"),
    ):
        peer, own = speeds[kind, "sb3"], speeds[kind, "ours"]
        # Of pairs measured one after the other, because the speed of a shared machine changes.
        pairs = zip(samples[kind, "ours"], samples[kind, "sb3"], strict=True)
        ratio = statistics.median(own / peer for own, peer in pairs)
        rows.append([text, f"{peer:,.0f}", f"{own:,.0f}", f"{ratio:.2f} x"])
        figures |= {
            f"sb3_{kind}": round(peer, 1),
            f"ours_{kind}": round(own, 1),
            f"{kind}_ratio": round(ratio, 3),
        }
    print(f"DQN on {GAME}, {num_envs} environments, this library's by {vectorization}")
    print_table(["frames/s", "SB3", "ours", "median ratio"], rows)
    print()
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
