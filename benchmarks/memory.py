"""Measure whether the memory of a training stays flat: of its processes and on the device.

The training is the program's own, with evaluations and checkpoints. Each row of the table is the
mean of several samples. The growth compares the last third of the samples after the warm-up with
the first third, by their 90th percentiles.

    python -m benchmarks.memory agent=sac env=fanuc minutes=30
"""

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil
import torch

from benchmarks.fixture import Seconds
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.kinds import accelerator_of
from trainers.run import run

_ROWS = 12
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
    """Memory at one moment.

    Attributes:
        minutes: time since the start of the training.
        process: resident memory of the process that trains, MiB.
        workers: resident memory of its child processes, MiB.
        device: memory that torch holds on the device, MiB; 0 on the CPU, where it is part of
            `process`.
    """

    minutes: float
    process: float
    workers: float
    device: float


def take_samples(device: torch.device, seconds: float, samples: list[Sample]) -> None:
    """Take samples for a number of seconds, and then end the training as Ctrl-C does."""
    process, start = psutil.Process(), time.perf_counter()
    accelerator = accelerator_of(device)
    while (now := time.perf_counter() - start) < seconds:
        workers = 0
        for child in process.children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                workers += child.memory_info().rss
        on_device = 0 if accelerator.kind == "cpu" else accelerator.used_memory
        memory = (process.memory_info().rss, workers, on_device)
        samples.append(Sample(now / 60.0, *(size / 2**20 for size in memory)))
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
    agent: str = "sac",
    env: str = "fanuc",
    minutes: Seconds = 30.0,
    device: str = "auto",
) -> int:
    """Train for some minutes and print memory by time, and its growth after the warm-up.

    Args:
        agent: name of the agent (sac).
        env: name of the environment (fanuc).
        minutes: duration of the training in minutes, above 0 (30).
        device: compute device, as in the main program (auto).
    """
    resolved = resolve_device(device)
    print_machine()
    samples: list[Sample] = []
    sampler = threading.Thread(
        target=take_samples, args=(resolved, 60.0 * minutes, samples), daemon=True
    )
    with tempfile.TemporaryDirectory() as runs, suppress(KeyboardInterrupt):
        chosen = (f"agent={agent}", f"env={env}", f"device={device}", f"runs={runs}")
        sampler.start()
        run(*chosen, *_SETTINGS)
    size = max(1, len(samples) // _ROWS)
    rows = []
    for first in range(0, len(samples), size):
        group = samples[first : first + size]
        means = (statistics.mean(column) for column in list(zip(*group, strict=True))[1:])
        rows.append([f"{group[-1].minutes:.1f}", *(f"{mean:,.1f}" for mean in means)])
    print_table(["minutes", "process, MiB", "workers, MiB", "device, MiB"], rows)
    warm = [sample for sample in samples if sample.minutes >= _WARM_UP * minutes]
    figures = {
        f"{name}_growth_percent": round(growth([getattr(s, name) for s in warm]), 2)
        for name in ("process", "workers", "device")
    }
    print_figures({"agent": agent, "env": env, "minutes": minutes, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
