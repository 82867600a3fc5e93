"""Measure how much faster an agent trains if it learns while the environment simulates.

Two equal trainings take turns after every few batched steps: one does all updates after each step,
the other the same updates during the next step. The environments simulate in worker processes.

    python -m benchmarks.overlap
"""

from typing import Final

import torch

from benchmarks.fixture import Count, Training
from benchmarks.measuring import take_turns, timed
from benchmarks.report import Figures, main, print_machine, print_table

RANDOM_FRAMES = 640  # before the first update

# Arguments of the main program, by the title of their row.
TRAININGS: Final = {
    "SAC, fanuc, 64 arms": ("agent=sac", "env=fanuc", "env.num_envs=64"),
    "SAC, fanuc, 64 arms, bf16": ("agent=sac", "env=fanuc", "env.num_envs=64", "precision=bf16"),
    "DQN, fanuc, 64 arms": ("agent=dqn", "env=fanuc"),
    "SAC, Pendulum-v1, 4 processes": (
        *("agent=sac", "env=gym", "env.name=Pendulum-v1", "env.num_envs=4"),
        *("env.vectorization=async", "agent.utd_ratio=0.25"),
    ),
}


def measure(*, rounds: Count = 15, steps: Count = 30) -> Figures:
    """Measure each training in turns, and print the medians of all rounds.

    Args:
        rounds: number of rounds after a warm-up, at least 1 (15).
        steps: number of batched steps per turn, at least 1 (30).
    """
    torch.set_num_threads(1)
    print_machine()
    rows, figures = [], {}
    for title, arguments in TRAININGS.items():
        ways = {
            overlap: Training.of(arguments, random_frames=RANDOM_FRAMES, overlap=overlap)
            for overlap in (False, True)
        }
        for training in ways.values():
            training(RANDOM_FRAMES)
        samples = take_turns(
            {way: timed(run, steps * run.trainer.num_envs) for way, run in ways.items()}, rounds
        )
        for training in ways.values():
            training.close()
        after, during = samples.rate(False), samples.rate(True)
        rows.append([title, f"{after:,.0f}", f"{during:,.0f}", f"{during / after:.2f} x"])
        figures[title] = {"after": round(after, 1), "during": round(during, 1)}
    print_table(["frames/s with the updates", "after each step", "during the next", "gain"], rows)
    return figures


if __name__ == "__main__":
    main(measure)
