"""Measure whether the memory of a training stays flat: of its processes and on the device.

The training is the program's own, with evaluations and checkpoints. Each row of the table is the
mean of several samples. The growth compares the last third of the samples after the warm-up with
the first third, by their 90th percentiles.

    python -m benchmarks.memory agent=sac env=fanuc minutes=30
    python -m benchmarks.memory agent=dqn env=gym settings="env.name=CartPole-v1"
"""

from __future__ import annotations

import io
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import psutil
import torch
from pydantic import Field

from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.kinds import accelerator_of
from trainers import run

_MIB = 2**20
_ROWS = 12
_INTERRUPTED = 130  # exit code of a training that was stopped and saved

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
    """Memory at one moment, in bytes.

    Attributes:
        seconds: time since the start of the training.
        process: resident memory of the process that trains.
        workers: resident memory of its child processes.
        device: memory that torch holds on the device; 0 on the CPU, where it is part of `process`.
    """

    seconds: float
    process: int
    workers: int
    device: int


@dataclass
class Sampler:
    """Takes samples in a thread beside the training, and stops the training at the end.

    Attributes:
        device: device of the training.
        seconds: duration of the training.
        interval: seconds from one sample to the next.
        samples: samples taken so far.
    """

    device: torch.device
    seconds: float
    interval: float
    samples: list[Sample]

    def __call__(self) -> None:
        """Take samples until the time is over, then end the training as Ctrl-C does."""
        process, start = psutil.Process(), time.perf_counter()
        accelerator = accelerator_of(self.device)
        while (now := time.perf_counter() - start) < self.seconds:
            workers = 0
            for child in process.children(recursive=True):
                with suppress(psutil.Error):  # it has ended
                    workers += child.memory_info().rss
            on_device = 0 if accelerator.kind == "cpu" else accelerator.used_memory
            self.samples.append(Sample(now, process.memory_info().rss, workers, on_device))
            time.sleep(self.interval)
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
    minutes: Annotated[float, Field(gt=0.0)] = 30.0,
    warm_up: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2,
    device: str = "auto",
    settings: str = "",
) -> int:
    """Train for some minutes and print memory by time, and its growth after the warm-up.

    Args:
        agent: name of the agent (sac).
        env: name of the environment (fanuc).
        minutes: duration of the training in minutes, above 0 (30).
        warm_up: share of the time that the growth leaves out, 0 to below 1 (0.2).
        device: compute device, as in the main program (auto).
        settings: further settings of the main program, separated by spaces (none).
    """
    seconds = 60.0 * minutes
    resolved = resolve_device(device)
    print_machine()
    sampler = Sampler(resolved, seconds, min(5.0, seconds / 200), [])
    with tempfile.TemporaryDirectory() as runs:
        sys.argv[1:] = [
            *(f"agent={agent}", f"env={env}", f"device={device}", f"runs={runs}"),
            *(*_SETTINGS, *settings.split()),
        ]
        threading.Thread(target=sampler, daemon=True).start()
        try:
            # The training prints how to go on, but its folder is deleted here.
            with redirect_stdout(io.StringIO()):
                code = run.main()
        except SystemExit as end:
            code = int(end.code or 0)
    if code != _INTERRUPTED:
        return code
    samples = sampler.samples
    size = max(1, len(samples) // _ROWS)
    groups = [samples[i : i + size] for i in range(0, len(samples), size)]
    rows = [
        [
            f"{group[-1].seconds / 60:.1f}",
            *(
                f"{statistics.mean(column) / _MIB:,.1f}"
                for column in list(zip(*group, strict=True))[1:]
            ),
        ]
        for group in groups
    ]
    print_table(["minutes", "process, MiB", "workers, MiB", "device, MiB"], rows)
    warm = [sample for sample in samples if sample.seconds >= warm_up * seconds]
    figures = {
        f"{name}_growth_percent": round(growth([getattr(s, name) for s in warm]), 2)
        for name in ("process", "workers", "device")
    }
    print_figures({"agent": agent, "env": env, "minutes": minutes, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
