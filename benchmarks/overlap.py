"""Measure how much faster an agent trains if it learns while the environment simulates.

Two equal trainings take turns after every few batched steps: one does all updates after each step,
the other the same updates during the next step. The environments simulate in worker processes.

    python -m benchmarks.overlap
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import torch
from pydantic import Field

from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.environments.specs import action_spec, observation_spec
from trainers.command_line.settings import Settings
from trainers.components.pairing import pair
from trainers.run import settings_of
from trainers.training.trainer import TorchRLTrainer

NEVER = 10**9
WARM_UP = 10  # batched steps before the first update

# Arguments of the main program, by the title of their row.
TRAININGS: Final = {
    "SAC, fanuc, 64 arms": ("agent=sac", "env=fanuc"),
    "SAC, fanuc, 64 arms, bf16": ("agent=sac", "env=fanuc", "precision=bf16"),
    "DQN, fanuc, 64 arms": ("agent=dqn", "env=fanuc"),
    "SAC, Pendulum-v1, 4 processes": (
        *("agent=sac", "env=gym", "env.name=Pendulum-v1", "env.num_envs=4"),
        *("env.vectorization=async", "agent.utd_ratio=0.25"),
    ),
}


class Training:
    """A training that can be continued step by step.

    Args:
        settings: settings of the training.
        folder: folder of the run.
        overlap: do the updates during the next step.
    """

    def __init__(self, settings: Settings, folder: Path, *, overlap: bool) -> None:
        torch.manual_seed(0)
        env = pair(
            settings.env.build(mode="train", device=settings.device, seed=0), settings.agent.target
        )
        agent = settings.agent.build(observation_spec(env), action_spec(env), settings.device)
        self._trainer = TorchRLTrainer(
            env,
            agent,
            folder,
            execution=settings.execution,
            total_frames=NEVER,
            random_frames=WARM_UP * env.batch_size.numel(),
            checkpoint_interval=NEVER,
            save_replay=False,
            overlap=overlap,
            show_progress=False,
            loggers=[],
        )

    def frames_per_second(self, steps: int) -> float:
        """Return the frames per second of some batched steps with all of their updates."""
        trainer, frames = self._trainer, self._trainer.frames
        trainer.total_frames = frames + steps * trainer.num_envs
        start = time.perf_counter()
        trainer.train()
        return (trainer.frames - frames) / (time.perf_counter() - start)

    def close(self) -> None:
        """End the processes of the environment."""
        self._trainer.env.close()


def measure(
    *,
    rounds: Annotated[int, Field(ge=1)] = 15,
    steps: Annotated[int, Field(ge=1)] = 30,
) -> int:
    """Measure each training in turns, and print the medians of all rounds.

    Args:
        rounds: number of rounds after a warm-up, at least 1 (15).
        steps: number of batched steps per turn, at least 1 (30).
    """
    torch.set_num_threads(1)
    print_machine()
    rows, figures = [], {}
    for title, arguments in TRAININGS.items():
        settings = settings_of(*arguments, "device=cpu")
        with tempfile.TemporaryDirectory() as folder:
            ways = [
                Training(settings, Path(folder) / str(overlap), overlap=overlap)
                for overlap in (False, True)
            ]
            for way in ways:  # warm up
                way.frames_per_second(WARM_UP + steps)
            speeds = [
                [training.frames_per_second(steps) for training in ways] for _ in range(rounds)
            ]
            for way in ways:
                way.close()
        apart, together = (statistics.median(samples) for samples in zip(*speeds, strict=True))
        rows.append([title, f"{apart:,.0f}", f"{together:,.0f}", f"{together / apart:.2f} x"])
        figures[title] = {"after": round(apart, 1), "during": round(together, 1)}
    print_table(["frames/s with the updates", "after each step", "during the next", "gain"], rows)
    print()
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
