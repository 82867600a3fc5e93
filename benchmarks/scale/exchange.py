"""Time that processes of a run spend in the calls by which they share their values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.launcher.api import elastic_launch

from torchrl_gpu.devices.host import share_cores
from torchrl_gpu.distributed import DistributedProcesses, joined
from torchrl_gpu.place import local_place
from trainers.modes.dispatch import run_mode
from trainers.ranks import launch_config
from trainers.run import settings_of
from trainers.training.callbacks import Callback
from trainers.training.trainer import TorchRLTrainer

Result = TypeVar("Result")


class Span(NamedTuple):
    """A time on the clock that all processes of a machine share, in seconds."""

    begin: float
    end: float


class Recording(NamedTuple):
    """Record of a process.

    Attributes:
        calls: calls that share values, in the order that all processes make them.
        training: time from the second row of metrics to the last one.
        steps: number of batched steps within this time.
    """

    calls: list[Span]
    training: Span
    steps: int


class Share(NamedTuple):
    """Time in calls that share values.

    Attributes:
        waiting: share of the time of training in which a process waits for the last one.
        exchange: share of the time of training from then to the end of the call.
        calls: number of calls per batched step.
        milliseconds: mean duration of an exchange.
        step_milliseconds: mean duration of a batched step with its updates.
    """

    waiting: float
    exchange: float
    calls: float
    milliseconds: float
    step_milliseconds: float


class TimedProcesses(DistributedProcesses):
    """Processes that note when each call begins and ends.

    Calls of other threads, which `apart` is for, are not noted: the training does not wait for
    them.

    Attributes:
        calls: the calls so far.
    """

    def __init__(self) -> None:
        super().__init__(dist.group.WORLD)
        self.calls: list[Span] = []

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the process of rank 0."""
        return self._timed(super().broadcast, tensor)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all processes."""
        return self._timed(super().gather, tensor)

    def agree(self, value: Any) -> Any:
        """Return the value of the process of rank 0."""
        return self._timed(super().agree, value)

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        return self._timed(super()._reduced, tensor, operation)

    def _timed(self, function: Callable[..., Result], *arguments: Any) -> Result:
        begin = time.perf_counter()
        result = function(*arguments)
        self.calls.append(Span(begin, time.perf_counter()))
        return result


class Rows(Callback):
    """Notes time and batched steps at each row of metrics."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int]] = []

    def on_log(self, trainer: TorchRLTrainer, metrics: Mapping[str, float]) -> None:
        """Note a row."""
        self.rows.append((time.perf_counter(), trainer.frames // trainer.frames_per_step))


def record(arguments: Sequence[str]) -> Recording:
    """Train as one of the processes that a launcher has started, and record its calls."""
    settings, rows = settings_of(*arguments), Rows()
    with joined():
        processes = TimedProcesses()
        number, count = local_place()
        share_cores(number, count)
        torch.set_num_threads(1)
        processes.compute_on(settings.device)
        settings = settings.share(count, settings.device)
        settings = replace(settings, trainer=settings.trainer.replaced(callbacks=[rows]))
        run_mode(settings, processes)
    (begin, first), (end, last) = rows.rows[1], rows.rows[-1]
    return Recording(processes.calls, Span(begin, end), last - first)


def measure_share(arguments: Sequence[str], count: int, folder: str) -> Share:
    """Train by a number of processes on the CPU, and return the time that their calls take.

    Args:
        arguments: arguments of the main program.
        count: number of processes.
        folder: folder for all files.
    """
    launch = elastic_launch(launch_config(count, folder), record)
    recordings = launch([*arguments, "device=cpu", f"runs={folder}"])
    return share_of([recordings[rank] for rank in range(count)])


def share_of(recordings: Sequence[Recording]) -> Share:
    """Return the time in the calls of all processes, as means over the processes.

    A process waits until the last one has begun the same call, and exchanges from then on.
    """
    begin, end = recordings[0].training
    calls = [
        spans
        for spans in zip(*(each.calls for each in recordings), strict=True)
        if begin <= spans[0].begin and spans[0].end <= end
    ]
    waiting, exchanges = 0.0, []
    for spans in calls:
        last = max(span.begin for span in spans)
        waiting += statistics.fmean(min(last, span.end) - span.begin for span in spans)
        exchanges.append(statistics.fmean(max(0.0, span.end - last) for span in spans))
    seconds, steps = end - begin, recordings[0].steps
    return Share(
        waiting / seconds,
        sum(exchanges) / seconds,
        len(calls) / steps,
        1e3 * statistics.fmean(exchanges),
        1e3 * seconds / steps,
    )
