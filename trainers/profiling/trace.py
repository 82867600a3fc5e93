"""Trace of some steps of a training, for a viewer of Chrome traces."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from torch.profiler import profile, record_function, schedule, supported_activities

from torchrl_gpu.timers import NOTHING, Part, Timers
from trainers.profiling.profile import Counts

logger = logging.getLogger(__name__)


class Trace(Timers):
    """Records every operation of host and device during some steps, once updates have begun.

    The number of batched steps is at least 1.

    Attributes:
        path: file with the trace; None before it is written.
    """

    def __init__(self, counts: Counts, steps: int, folder: Path) -> None:
        super().__init__()
        self._counts = counts
        self._steps = steps
        self._folder = folder
        self._updates_before = 0
        self._profiler: profile | None = None
        self.path: Path | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record once during a training, from the step after its first update on."""
        self._updates_before = self._counts.updates
        try:
            yield
        finally:
            self._stop()
        if self.path is None:
            logger.warning("no trace: the training ended too soon after its first update")

    def __call__(self, part: Part) -> AbstractContextManager[object]:
        """Name a part in the trace."""
        return NOTHING if self._profiler is None else record_function(part)

    def next_step(self) -> None:
        """Begin the recording, go on to its next step, or end it."""
        if self._profiler is not None:
            self._profiler.step()
            if self.path is not None:
                self._stop()
        elif self.path is None and self._counts.updates > self._updates_before:
            self._profiler = profile(
                activities=supported_activities(),
                # The first step after its start is slower than the others.
                schedule=schedule(wait=0, warmup=1, active=self._steps, repeat=1),
                on_trace_ready=self._write,
            )
            self._profiler.start()

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _write(self, profiler: profile) -> None:
        path = self._folder / f"trace_frames_{self._counts.frames:012d}.json.gz"
        profiler.export_chrome_trace(str(path))
        self.path = path
