"""Measure the pause of the training by a save, its bytes and its memory.

The training is the program's own, with a full replay. It saves after each interval of frames: in
the background, where each save writes the new transitions; and as a training without these two
does, which waits until the whole replay is written. The pause of a save is the time that the
training spends on it: for the snapshot, and waiting for the disk. It needs Linux.

    python -m benchmarks.saving
    python -m benchmarks.saving task=pong interval=240
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from benchmarks.fixture import Count, Training
from benchmarks.report import Figures, main, print_machine, print_table
from tests.helpers.memory import peak_memory
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, replay_path
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.timers import Part, Timers
from trainers import Callback
from trainers.training.experience import ReplayExperience
from trainers.training.trainer import TorchRLTrainer

TASKS = {
    "fanuc": ("agent=sac", "env=fanuc"),
    "pong": ("agent=dqn", "env=gym", "env.name=ALE/Pong-v5"),
}
_RECORDED_STEPS = 200


class PauseTimer(Timers):
    """Measures the time that each step of the training spends on saves.

    Attributes:
        steps: seconds of each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []

    def next_step(self) -> None:
        """Begin the next step."""
        self.steps.append(0.0)

    @contextmanager
    def __call__(self, part: Part) -> Iterator[None]:
        """Measure a part if it is a save."""
        began = time.perf_counter()
        yield
        if part == "save":
            self.steps[-1] += time.perf_counter() - began


class Bytes(Callback):
    """Records the bytes of each save.

    Attributes:
        written: bytes of the files of each save.
        saves_all: whether each save writes the whole replay.
    """

    def __init__(self) -> None:
        self.written: list[int] = []
        self.saves_all = False

    def on_save(self, trainer: TorchRLTrainer, path: Path) -> None:
        """Add up the files of a save."""
        files = (file for file in (path, replay_path(path)) if file.exists())
        self.written.append(sum(file.stat().st_size for file in files))
        if self.saves_all:
            trainer.checkpoints = CheckpointFolder(path.parent)


def fill(trainer: TorchRLTrainer) -> None:
    """Fill the replay with steps of the environment, the same ones again and again."""
    assert isinstance(trainer.experience, ReplayExperience)
    replay = trainer.experience.replay
    steps = [trainer.collect().clone() for _ in range(_RECORDED_STEPS)]
    for number in range(replay.capacity // replay.num_envs + 1):
        replay.extend(steps[number % len(steps)])


@dataclass(frozen=True)
class Side:
    """A training with saves of one kind, or without any.

    Attributes:
        pauses: milliseconds that the training spent on each save.
        speed: environment steps per second, saves included.
        peak: largest resident memory of the process in MiB.
        written: bytes of each save.
    """

    pauses: list[float]
    speed: float
    peak: float
    written: list[int]


def measure_side(training: Training, counter: Bytes, interval: int, saves: int) -> Side:
    """Train for `saves` intervals of environment steps, with a save at the end of each."""
    trainer = training.trainer
    trainer.timers = timer = PauseTimer()
    counter.written = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the memory begins anew
    began = time.perf_counter()
    training(saves * interval)
    seconds = time.perf_counter() - began
    steps = interval // trainer.num_envs
    pauses = [
        1e3 * sum(timer.steps[first : first + steps]) for first in range(0, saves * steps, steps)
    ]
    return Side(pauses, saves * interval / seconds, peak_memory() / 2**20, counter.written)


def measure(
    *,
    task: Literal["fanuc", "pong"] = "fanuc",
    interval: Count = 6_400,
    saves: Count = 100,
    whole_saves: Count = 4,
    capacity: Count = 1_000_000,
) -> Figures:
    """Measure saves in the background beside those that the training waits for.

    Args:
        task: `fanuc`, SAC that observes numbers; or `pong`, DQN that observes images, which needs
            the extra `atari` (fanuc).
        interval: environment steps from save to save (6400).
        saves: number of saves in the background (100).
        whole_saves: number of saves of the whole replay, which the training waits for (4).
        capacity: number of observations in the replay, which is full (1000000).

    Raises:
        ConfigurationError: the memory is insufficient, or a package is missing.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    print_machine()
    counter = Bytes()
    training = Training.of(
        TASKS[task], replay_capacity=capacity, random_frames=0, callbacks=[counter]
    )
    trainer = training.trainer
    trainer.evaluation_env = None
    interval = max(1, interval // trainer.num_envs) * trainer.num_envs
    print(f"{capacity:,} observations of {task}, a save every {interval:,} frames\n")
    fill(trainer)
    # The first updates compile and choose. Later trainings end with a save of the interval.
    training(10 * interval - trainer.frames % interval)
    sides = {"no saves": measure_side(training, counter, interval, min(saves, 20))}

    trainer.save_replay, trainer.checkpoint_interval = True, interval
    first = measure_side(training, counter, interval, 1)
    sides["in the background"] = measure_side(training, counter, interval, saves)

    trainer.saver.in_background, counter.saves_all = False, True
    trainer.checkpoints = CheckpointFolder(trainer.checkpoints.folder)
    sides["all of it, waited for"] = measure_side(training, counter, interval, whole_saves)
    training.close()

    rows = []
    for name, side in sides.items():
        pauses = [f"{number:.1f}" for number in np.percentile(side.pauses, (50, 99, 100))]
        written = f"{np.median(side.written) / 2**20:,.1f}"
        row = [name, f"{side.speed:,.0f}", f"{side.peak:,.0f}", *pauses, written]
        rows.append(row if name != "no saves" else [*row[:3], "", "", "", ""])
    header = ["saves", "frames/s", "peak MiB", "pause ms", "p99", "max", "MiB written"]
    print_table(header, rows)
    ours, whole = sides["in the background"], sides["all of it, waited for"]
    return {
        "task": task,
        "pause_p99_ms": round(float(np.percentile(ours.pauses, 99)), 2),
        "pause_max_ms": round(max(ours.pauses), 2),
        "pause_first_ms": round(first.pauses[0], 2),
        "pause_whole_ms": round(float(np.median(whole.pauses)), 1),
        "bytes_full": first.written[0],
        "bytes_next": int(np.median(ours.written)),
        "peak_memory": round(ours.peak / sides["no saves"].peak, 3),
        "speed": round(ours.speed / sides["no saves"].speed, 3),
    }


if __name__ == "__main__":
    main(measure)
