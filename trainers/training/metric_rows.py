"""Rows of metrics of a training."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from trainers.metrics import metrics_of, read, reading_of
from trainers.training.nonfinite import refuse_nonfinite

if TYPE_CHECKING:
    from trainers.training.progress import ProgressDisplay
    from trainers.training.trainer import TorchRLTrainer


class MetricRows:
    """Reads and logs the metrics of a training; each row has those since the row before."""

    def __init__(self, trainer: TorchRLTrainer) -> None:
        self._trainer = trainer
        self._began, self._frames = time.perf_counter(), trainer.frames

    def begin(self) -> None:
        """Let the next row begin here."""
        self._began, self._frames = time.perf_counter(), self._trainer.frames
        self._trainer.system.begin()

    def log(self, display: ProgressDisplay) -> None:
        """Log the row that ends here, show its episodes, and call the callbacks.

        Refuse a loss that is NaN or infinite; its row is not logged.
        """
        trainer = self._trainer
        with trainer.timers("log"):
            row = self._take()
            trainer.metric_logger.log(trainer.frames, row)
        display.update(
            trainer.frames,
            success=row.get("episode/success"),
            mean_return=row.get("episode/return"),
        )
        for callback in trainer.callbacks:
            callback.on_log(trainer, row)

    def _take(self) -> dict[str, float]:
        """Return the row that ends here, by the names of docs/metrics.md."""
        trainer, now = self._trainer, time.perf_counter()
        watched = {"steps_are_finite": trainer.watch.is_finite().float()}
        if trainer.on_nonfinite == "restart":
            watched["episode/restarts"] = trainer.processes.sum(trainer.restarts.clone())
            trainer.restarts.zero_()
        row = {
            "seconds": now - trainer.started,
            "frames_per_second": (trainer.frames - self._frames) / (now - self._began),
            **read(
                trainer.episodes.take(),
                trainer.update_metrics.take(),
                metrics_of(trainer.env, trainer.processes),
                reading_of(watched),
            ),
            **(trainer.profiler.shares() if trainer.profiler else {}),
            **(trainer.system.take() if trainer.processes.is_writer else {}),
        }
        steps_are_finite = row.pop("steps_are_finite")
        names = [n for n, x in row.items() if n.startswith("loss/") and not math.isfinite(x)]
        if names or not steps_are_finite:
            refuse_nonfinite(trainer, names)
        self._began, self._frames = now, trainer.frames
        return row
