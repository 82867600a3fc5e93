"""Callbacks of a training: your own code after steps, rows of metrics, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.evaluation.evaluation import Evaluation
    from trainers.training.trainer import TorchRLTrainer


class Callback:
    """Base class of callbacks; override the methods that you need.

    All of them run between two steps, with the training up to date: `trainer.frames`, `.agent`,
    `.env`. `trainer.stop_requested = True` ends the training before the next step.
    """

    def on_step(self, trainer: TorchRLTrainer) -> None:
        """Run after each batched step, so it has to be cheap.

        `trainer.evaluation_requested = True` asks for an evaluation after the next step, beside
        those at its interval.
        """

    def on_log(self, trainer: TorchRLTrainer, metrics: Mapping[str, float]) -> None:
        """Run after a row of metrics is logged, values by name: see docs/metrics.md."""

    def on_evaluation(self, trainer: TorchRLTrainer, evaluation: Evaluation) -> None:
        """Run after an evaluation during the training, which is logged."""

    def on_save(self, trainer: TorchRLTrainer, path: Path) -> None:
        """Run after a checkpoint is on disk; each of several processes has the path of its share.

        With `trainer.save_in_background` the training has gone on meanwhile by some steps. The file
        may be written again after the evaluation at the same number of frames, which it then
        includes.
        """
