"""Measure whether memory, open files and threads of trainings stay flat.

The trainings are the program's own, with evaluations and checkpoints, one after the other in one
process, again and again. Each row of the table is the mean of several samples. The growth of a
training compares the last third of its samples after the warm-up with the first third, by their
90th percentiles.

    python -m benchmarks.memory minutes=60
    python -m benchmarks.memory trainings='["sac fanuc"]' turns=1 minutes=30
"""

import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import psutil
import torch
from pydantic import Field, Json

from benchmarks.fixture import Count, Seconds
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.kinds import accelerator_of
from trainers.run import run

_ROWS = 24
_WARM_UP = 0.2  # share of the time that the growth leaves out

# The replay fills during the warm-up: its pages become resident as they are written.
_SETTINGS = (
    "trainer.total_frames=1_000_000_000",
    "trainer.random_frames=1_000",
    "trainer.replay_capacity=20_000",
    "trainer.log_interval=2_000",
    "trainer.evaluation_interval=10_000",
    "trainer.evaluation_episodes=16",
    "trainer.checkpoint_interval=20_000",
)


class Sample(NamedTuple):
    """Resources at one moment.

    Attributes:
        process: resident memory of the process that trains, MiB.
        workers: resident memory of its child processes, MiB.
        device: memory that torch holds on the device, MiB; 0 on the CPU, where it is part of
            `process`.
        files: number of files that the process has open.
        threads: number of threads of the process.
    """

    process: float
    workers: float
    device: float
    files: float
    threads: float


def take_samples(device: torch.device, seconds: float, samples: list[Sample]) -> None:
    """Take samples for a number of seconds, and then end the training as Ctrl-C does."""
    process, start = psutil.Process(), time.perf_counter()
    accelerator = accelerator_of(device)
    while time.perf_counter() - start < seconds:
        workers = 0
        for child in process.children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                workers += child.memory_info().rss
        on_device = 0 if accelerator.kind == "cpu" else accelerator.used_memory
        files = process.num_handles() if os.name == "nt" else process.num_fds()
        memory = process.memory_info().rss / 2**20
        samples.append(
            Sample(memory, workers / 2**20, on_device / 2**20, files, process.num_threads())
        )
        time.sleep(min(5.0, seconds / 200))
    os.kill(os.getpid(), signal.SIGINT)


def growth(values: Sequence[float]) -> float:
    """Return how much larger the last third of the values is than the first third, in percent.

    Collection, updates and evaluations differ in memory, and each third has its own shares of them.
    The 90th percentiles are therefore compared: the level of the phase that needs most.
    """
    third = max(1, len(values) // 3)
    first, last = (sorted(part)[int(0.9 * third)] for part in (values[:third], values[-third:]))
    return 0.0 if first == 0 else 100.0 * (last / first - 1.0)


def measure(
    *,
    trainings: Json[Annotated[Sequence[str], Field(min_length=1)]] = ("sac fanuc", "ppo marinenav"),
    turns: Count = 6,
    minutes: Seconds = 60.0,
    device: str = "auto",
) -> Figures:
    """Train for some minutes; print memory, files and threads, and their growth after the warm-up.

    Args:
        trainings: agent and environment of each training (["sac fanuc", "ppo marinenav"]).
        turns: number of times that each training begins anew (6).
        minutes: duration of all of them together in minutes, above 0 (60).
        device: compute device, as in the main program (auto).
    """
    resolved = resolve_device(device)
    print_machine()
    samples: dict[str, list[Sample]] = {training: [] for training in trainings}
    seconds = 60.0 * minutes / turns / len(samples)
    rows = []
    for turn, training in itertools.product(range(1, turns + 1), samples):
        agent, _, env = training.partition(" ")
        taken: list[Sample] = []
        sampler = threading.Thread(
            target=take_samples, args=(resolved, seconds, taken), daemon=True
        )
        with tempfile.TemporaryDirectory() as runs, suppress(KeyboardInterrupt):
            sampler.start()
            run(f"agent={agent}", f"env={env}", f"device={device}", f"runs={runs}", *_SETTINGS)
        sampler.join()
        samples[training] += taken
        size = max(1, -(-len(taken) * turns * len(samples) // _ROWS))
        for first in range(0, len(taken), size):
            means = map(statistics.mean, zip(*taken[first : first + size], strict=True))
            rows.append([training, f"{turn}", *(f"{mean:,.1f}" for mean in means)])
    header = ["training", "turn", "process, MiB", "workers, MiB", "device, MiB", "files", "threads"]
    print_table(header, rows)
    figures = {}
    for training, taken in samples.items():
        warm = taken[int(_WARM_UP * len(taken)) :]
        for name, values in zip(Sample._fields, zip(*warm, strict=True), strict=True):
            key = f"{training.replace(' ', '_')}_{name}_growth_percent"
            figures[key] = round(growth(values), 2)
    return {"minutes": minutes, "turns": turns, **figures}


if __name__ == "__main__":
    main(measure)
