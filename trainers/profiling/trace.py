"""Trace of some steps of a training, for a viewer of Chrome traces."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tensordict import TensorDictBase
from torch.profiler import profile, record_function, schedule, supported_activities

from trainers.profiling.parts import enclosed

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)


class Trace:
    """Records every operation of host and device during some steps, once updates have begun.

    Args:
        trainer: trainer to record.
        steps: number of batched steps to record, at least 1.
        folder: folder of the file.

    Attributes:
        path: file with the trace; None before it is written.
    """

    def __init__(self, trainer: TorchRLTrainer, steps: int, folder: Path) -> None:
        self._trainer = trainer
        self._steps = steps
        self._folder = folder
        self._profiler: profile | None = None
        self.path: Path | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record once within the block, from the step after the first update on."""
        trainer, updates, collect = self._trainer, self._trainer.updates, self._trainer.collect
        with ExitStack() as undo:

            def collect_and_record() -> TensorDictBase:
                if self._profiler is not None:
                    self._profiler.step()
                elif trainer.updates > updates:
                    self._profiler = undo.enter_context(self._new_profiler())
                    undo.enter_context(enclosed(trainer, record_function))
                if self.path is not None:
                    undo.close()
                return collect()

            if self.path is None:
                trainer.collect = collect_and_record  # type: ignore[method-assign]
                undo.callback(delattr, trainer, "collect")
            yield
        if self.path is None:
            logger.warning("no trace: the training ended too soon after its first update")

    def _new_profiler(self) -> profile:
        return profile(
            activities=supported_activities(),
            # The first step after its start is slower than the others.
            schedule=schedule(wait=0, warmup=1, active=self._steps, repeat=1),
            on_trace_ready=self._write,
        )

    def _write(self, profiler: profile) -> None:
        path = self._folder / f"trace_frames_{self._trainer.frames:012d}.json.gz"
        profiler.export_chrome_trace(str(path))
        self.path = path
