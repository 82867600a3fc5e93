"""Measure the overhead over plain PyBullet and the speed-up over Stable-Baselines3.

Two comparisons, with the same arm and physics, in one run:

1. Speed of the environment alone, with SAC's policy acting, and with training at the default ratio,
   after each step and while the next one is simulated, as a share of the speed of a plain PyBullet
   loop on all cores.
2. Speed of acting with storing, and of training, beside Stable-Baselines3 with one process and one
   Gymnasium environment at the same number of updates per frame. The actor learns in every update,
   as theirs does, and not in every second one, as in the preset. This library runs `many` arms.

    python -m benchmarks.fanuc
"""

from __future__ import annotations

import pkgutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from benchmarks.extra import require
from benchmarks.raw_pybullet import RawLoop
from benchmarks.report import print_figures, print_machine, print_table
from benchmarks.single_arm import SingleArm
from envs.fanuc.env import SOLVER_ITERATIONS, FanucEnv
from envs.fanuc.targets import HOME, load_targets
from envs.fanuc.worker_pool import default_num_workers, group_sizes
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.environments.specs import observation_spec
from torchrl_gpu.replay.buffer import ReplayBuffer
from trainers.command_line.settings import Settings
from trainers.run import settings_of
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")
NEVER = 10**9


def default_settings() -> Settings:
    """Return the settings of `agent=sac env=fanuc`, with the actor in every update."""
    return settings_of("agent=sac", "env=fanuc", "device=cpu", "agent.actor_period=1")


class Ours:
    """The training pipeline of the README's command, in parts that can be measured."""

    def __init__(self, settings: Settings, num_envs: int) -> None:
        self.env = FanucEnv(num_envs=num_envs)
        self.num_envs = num_envs
        self.agent = settings.agent.build(observation_spec(self.env), self.env.action_spec, CPU)
        self.collector = BatchCollector(self.env, CPU, self.agent.policy.in_keys)
        self.replay = ReplayBuffer(
            1_000_000, self.agent.observation_spec, self.agent.action_spec, num_envs, CPU
        )
        self._actions = [self.env.action_spec.rand() for _ in range(100)]
        self._folder = tempfile.TemporaryDirectory()
        self._trainer = TorchRLTrainer(
            self.env,
            self.agent,
            Path(self._folder.name),
            total_frames=NEVER,
            random_frames=num_envs * 10,
            checkpoint_interval=NEVER,
            show_progress=False,
        )

    def step_env(self, steps: int) -> None:
        """Step the environment with random actions."""
        state = self.env.reset()
        for step in range(steps):
            _, state = self.env.step_and_maybe_reset(
                state.set("action", self._actions[step % len(self._actions)])
            )

    def act(self, steps: int) -> None:
        """Step the environment with the policy's actions."""
        self.collector.restart()
        for _ in range(steps):
            self.collector.step(self.agent.policy)

    def act_and_store(self, steps: int) -> None:
        """Step the environment with the policy's actions, and store every transition."""
        self.collector.restart()
        for _ in range(steps):
            self.replay.extend(self.collector.step(self.agent.policy))

    def train(self, steps: int, *, overlap: bool) -> None:
        """Train with the default ratio of updates to frames."""
        self._trainer.overlap = overlap
        self._trainer.total_frames = self._trainer.frames + steps * self.num_envs
        self._trainer.train()

    def close(self) -> None:
        """Close the environment and the trainer."""
        self._trainer.close()
        self.env.close()
        self._folder.cleanup()


class Theirs:
    """One arm in one Gymnasium environment, trained by Stable-Baselines3's SAC."""

    def __init__(self, settings: Settings, env: FanucEnv) -> None:
        agent = settings.agent.settings
        bank = load_targets(env.robot)
        arm = SingleArm(
            env.robot, SOLVER_ITERATIONS["train"], bank.positions.numpy(), bank.starts.numpy()
        )
        common: dict[str, Any] = {
            "policy": "MlpPolicy",
            "env": arm,
            "learning_rate": agent["learning_rate"],
            "gamma": agent["gamma"],
            "tau": agent["target_rate"],
            "batch_size": agent["batch_size"],
            "buffer_size": 1_000_000,
            "learning_starts": 0,
            "policy_kwargs": {"net_arch": agent["hidden_sizes"]},
            "device": "cpu",
        }
        common["train_freq"] = round(1 / agent["utd_ratio"])
        sac = pkgutil.resolve_name("stable_baselines3:SAC")
        self._collector = sac(**common, gradient_steps=0)
        self._learner = sac(**common, gradient_steps=1)
        self._learner.learn(1_000)

    def act_and_store(self, steps: int) -> None:
        """Step with the policy's actions and store every transition, without updates."""
        self._collector.learn(steps, reset_num_timesteps=True)

    def train(self, steps: int) -> None:
        """Train with the same ratio of updates to frames as `Ours`."""
        self._learner.learn(steps, reset_num_timesteps=True)


def rate(run: Callable[[int], object], steps: int, arms: int) -> float:
    """Return the arm-steps per second of `run(steps)`."""
    start = time.perf_counter()
    run(steps)
    return arms * steps / (time.perf_counter() - start)


def measures_of(
    ours: Ours, overlapping: Ours, raw: RawLoop, steps: int
) -> dict[str, Callable[[], float]]:
    """Return the measurements for one number of arms, by name."""
    arms = ours.num_envs
    return {
        "raw": lambda: raw.arm_steps_per_second(steps),
        "env": lambda: rate(ours.step_env, steps, arms),
        "policy": lambda: rate(ours.act, steps, arms),
        "collect": lambda: rate(ours.act_and_store, steps, arms),
        "training": lambda: rate(partial(ours.train, overlap=False), max(1, steps // 4), arms),
        "overlap": lambda: rate(partial(overlapping.train, overlap=True), max(1, steps // 4), arms),
    }


def measure(
    *,
    arms: Annotated[int, Field(ge=1)] = 64,
    many: Annotated[int, Field(ge=1)] = 512,
    rounds: Annotated[int, Field(ge=1)] = 3,
    frames: Annotated[int, Field(ge=10)] = 25_000,
) -> int:
    """Run all measurements in turns, for several rounds, and print the medians.

    Args:
        arms: number of arms for the comparison with plain PyBullet, at least 1 (64).
        many: number of arms for the comparison with Stable-Baselines3, at least 1 (512).
        rounds: number of rounds after a first one that warms up, at least 1 (3).
        frames: number of arm-steps per measurement, at least 10 (25000).

    Raises:
        ConfigurationError: Stable-Baselines3 is not installed.
    """
    require("stable_baselines3")
    settings = default_settings()
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    print_machine()
    measures: dict[tuple[str, int], Callable[[], float]] = {}
    teams: list[tuple[Ours, Ours, RawLoop]] = []
    for number in (arms, many):
        ours, overlapping = Ours(settings, number), Ours(settings, number)
        sizes, workers = group_sizes(number), default_num_workers(number)
        shares = [sizes[i::workers] for i in range(workers)]
        raw = RawLoop(ours.env.robot, SOLVER_ITERATIONS["train"], HOME, shares)
        teams.append((ours, overlapping, raw))
        for name, run in measures_of(ours, overlapping, raw, max(1, frames // number)).items():
            measures[name, number] = run
    theirs = Theirs(settings, teams[0][0].env)
    single = frames // 10
    measures["sb3_collect", 1] = lambda: rate(theirs.act_and_store, single, 1)
    measures["sb3_training", 1] = lambda: rate(theirs.train, single, 1)

    samples: dict[tuple[str, int], list[float]] = {key: [] for key in measures}
    for turn in range(rounds + 1):
        for key, run in measures.items():
            speed = run()
            if turn > 0:  # the first round warms up
                samples[key].append(speed)
    for ours, overlapping, raw in teams:
        raw.close()
        ours.close()
        overlapping.close()
    report({key: statistics.median(s) for key, s in samples.items()}, arms, many)
    return 0


def report(speeds: dict[tuple[str, int], float], arms: int, many: int) -> None:
    """Print both comparisons and a final JSON object."""
    words = {
        "raw": "PyBullet alone, all cores",
        "env": "EnvBase, random actions",
        "policy": "with SAC's policy acting",
        "collect": "acting and storing",
        "training": "with training at the default ratio",
        "overlap": "with training during simulation",
    }
    print_table(
        ["arm-steps/s", f"{arms} arms", "of raw", f"{many} arms", "of raw"],
        [
            [text]
            + [
                cell
                for n in (arms, many)
                for cell in (f"{speeds[k, n]:,.0f}", f"{speeds[k, n] / speeds['raw', n]:.0%}")
            ]
            for k, text in words.items()
        ],
    )
    print()
    rows = []
    for text, kind, way in (
        ("acting and storing", "collect", "collect"),
        ("training", "training", "overlap"),
    ):
        sb3, own = speeds[f"sb3_{kind}", 1], speeds[way, many]
        rows.append([text, f"{sb3:,.0f}", f"{own:,.0f}", f"{own / sb3:.1f} x"])
    print_table(["arm-steps/s", "SB3, one arm", f"ours, {many} arms", "ratio"], rows)
    print()
    print_figures(
        {
            **{kind: round(speeds[kind, arms], 1) for kind in words},
            **{f"{kind}_{many}": round(speeds[kind, many], 1) for kind in words},
            "sb3_collect": round(speeds["sb3_collect", 1], 1),
            "ours_collect": round(speeds["collect", many], 1),
            "sb3_training": round(speeds["sb3_training", 1], 1),
            "ours_training": round(speeds["overlap", many], 1),
        }
    )


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
