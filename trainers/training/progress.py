"""Progress display of a run: a bar in a terminal, plain lines at intervals in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from torchrl_gpu.tables import human_time

_RATE_SECONDS = 30.0
# Longer than the interval between evaluations, so that the estimate includes them.
_ESTIMATE_SECONDS = 600.0
_SAMPLE_SECONDS = 0.5
_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0

# The lock that tqdm makes otherwise, torch's compiler included, is one for several processes: a
# semaphore in shared memory, which stays if a signal to the group ends the process that guards it.
tqdm.set_lock(threading.RLock())


class ProgressDisplay:
    """Displays progress, rate and remaining time, and in training success and return.

    Calls are cheap enough for every step: most of them display nothing.

    Args:
        total: number of frames (or of another unit) at the end.
        initial: number of frames at the start, above 0 in a resumed run.
        unit: name of the counted unit, in the plural.
        file: output stream: a bar if it is a terminal, otherwise a line at most every 10 s and one
            at the end. None for standard error.
        enabled: display progress; messages are printed in either case.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        total: int,
        initial: int = 0,
        file: TextIO | None = None,
        *,
        unit: str = "frames",
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._initial = initial
        self._unit = unit
        self._frames = initial
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._facts: dict[str, str] = {}
        self._started = self._shown = clock()
        self._samples = deque([(self._started, initial)])
        self._open = enabled
        self._bar: tqdm | None = None
        if enabled and self._file.isatty():
            self._bar = tqdm(
                total=total,
                initial=initial,
                file=self._file,
                bar_format="{percentage:3.0f}% |{bar}| {desc}",
                dynamic_ncols=True,
            )

    def update(
        self,
        frames: int,
        *,
        success: float | None = None,
        mean_return: float | None = None,
        stage: str | None = None,
    ) -> None:
        """Update the display. An argument that is None keeps its previous value.

        Args:
            frames: number of frames so far, `initial` included.
            success: success rate of the latest episodes, 0 to 1.
            mean_return: mean return of the latest episodes.
            stage: current activity, as in `evaluating 120/500 episodes`; empty for none. A bar
                shows the beginning of an activity at once.
        """
        self._frames = frames
        if success is not None:
            self._facts["success"] = f"success {100 * success:.0f} %"
        if mean_return is not None:
            self._facts["return"] = f"return {mean_return:.3g}"
        begins = bool(stage) and not self._facts.get("stage")
        if stage is not None:
            self._facts["stage"] = stage
        if not self._open:
            return
        now = self._clock()
        if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, frames))
            while len(self._samples) > 2 and now - self._samples[1][0] >= _ESTIMATE_SECONDS:
                self._samples.popleft()
        is_due = now - self._shown >= (_LINE_SECONDS if self._bar is None else _BAR_SECONDS)
        if is_due or (begins and self._bar is not None):
            self._shown = now
            long_rate = self._rate(now, _ESTIMATE_SECONDS)
            rest = max(self._total - frames, 0)  # the last step may go beyond the total
            left = f"{human_time(rest / long_rate)} left" if long_rate > 0 else ""
            # Of units that take longer than a second, too few end in the shorter time.
            rate = self._rate(now, _RATE_SECONDS) if long_rate >= 1 else long_rate
            self._show(rate, left)

    def message(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self._bar is None:
            self._print(text)
        else:
            with contextlib.suppress(OSError):  # the terminal is lost
                tqdm.write(text, file=self._file)

    def close(self) -> None:
        """Display mean rate and elapsed time. Later calls do nothing."""
        if not self._open:
            return
        self._open = False
        seconds = self._clock() - self._started
        rate = (self._frames - self._initial) / seconds if seconds > 0 else 0.0
        self._show(rate, f"in {human_time(seconds)}")
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rate(self, now: float, seconds: float) -> float:
        """Return the mean rate in frames per second over the last seconds, or since the start."""
        first = self._samples[0]
        start, frames = next((s for s in reversed(self._samples) if now - s[0] >= seconds), first)
        return (self._frames - frames) / (now - start) if now > start else 0.0

    def _show(self, rate: float, remaining: str) -> None:
        done = f"{self._unit} {self._frames:,}/{self._total:,}"
        speed = f"{rate:,.0f} {self._unit}/s"
        if self._frames == self._initial:
            speed = ""  # not known yet
        elif 0 < rate < 1:
            speed = f"{human_time(1 / rate)} per {self._unit.removesuffix('s')}"
        facts = [done, speed, *self._facts.values(), remaining]
        text = "   ".join(fact for fact in facts if fact)
        if self._bar is None:
            self._print(f"  {text}")
        else:
            self._bar.n = min(self._frames, self._total)
            self._bar.set_description_str(text)

    def _print(self, text: str) -> None:
        try:
            print(text, file=self._file, flush=True)
        except OSError:  # its reader has gone, as `tee` when a terminal closes
            self._open = False
