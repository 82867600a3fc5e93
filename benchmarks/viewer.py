"""Measure the cost of the viewer for a training, and the time until its first picture.

One training takes turns: without a viewer, and beside one whose page is open in headless Chromium,
at first as if on another machine (the viewer sends, the browser stands still), then on the cores of
the training, without a GPU. The processes that a turn does without are stopped meanwhile (SIGSTOP),
and the browser has the lowest priority. The turns are short, so that the speed of a shared machine
changes less than the viewer costs; a figure is the frames of all turns over those without a viewer,
with its standard error over the rounds. While no browser shows the page, the viewer only waits.

    OMP_NUM_THREADS=1 python -m benchmarks.viewer
"""

import contextlib
import math
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
import torch

from benchmarks.fixture import Count, Seconds, Training
from benchmarks.measuring import Samples, take_turns
from benchmarks.report import Figures, main, print_machine, print_table
from tests.helpers.browser import Tab, opened
from trainers.modes.viewer_process import viewer_beside
from trainers.run import settings_of
from trainers.viewing.page import free_port

TRAININGS: Final = {
    "SAC, fanuc, 64 arms": ("agent=sac", "env=fanuc", "env.num_envs=64"),
    "PPO, marinenav": ("agent=ppo", "env=marinenav"),
}
WITHOUT = "no viewer"
WATCHED, DRAWN = "page open elsewhere", "page open here"
# Steps of the environments in one call of the trainer: a whole rollout of PPO.
_TURN_STEPS: Final = 32
_HOST: Final = "localhost"
_PATIENCE: Final = 300.0  # seconds for a viewer to be ready
_BACKGROUND: Final = 60  # brightest color of an empty page
_LEAST_SHARE: Final = 0.1  # of a screenshot that a picture covers


def measure(*, seconds: Seconds = 700.0, turn: Seconds = 0.25, openings: Count = 3) -> Figures:
    """Measure each training in turns.

    Args:
        seconds: duration of all turns of a training, above 0 (700).
        turn: shortest duration of a turn in seconds, above 0 (0.25).
        openings: number of times that the page is opened, at least 1 (3).
    """
    torch.set_num_threads(1)
    print_machine()
    rows, figures = [], {}
    for title, arguments in TRAININGS.items():
        with ExitStack() as stack:
            training = stack.enter_context(contextlib.closing(Training.of(arguments)))
            frames = _TURN_STEPS * training.trainer.num_envs
            training(max(frames, 10_000))  # beyond random frames, and a checkpoint to play
            address, viewer = _view(arguments, training, stack)
            waits = [_opened(address) for _ in range(openings)]
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            before = _children()
            tab = stack.enter_context(opened(address, Path(folder)))
            _wait_for_picture(tab)
            browser = _lowered(_children() - before)
            running = {
                WITHOUT: [],
                WATCHED: [viewer],
                DRAWN: [viewer, *browser],
            }
            everyone = running[DRAWN]
            stack.callback(_signal, everyone, signal.SIGCONT)
            samples = take_turns(
                {
                    way: _turn(training, frames, turn, everyone, processes)
                    for way, processes in running.items()
                },
                seconds=seconds,
            )
        shares = {way: _share(samples, way) for way in (WATCHED, DRAWN)}
        rows.append(
            [
                title,
                f"{samples.rate(WITHOUT):,.0f}",
                *(f"{100 * share:.1f} ± {100 * error:.1f} %" for share, error in shares.values()),
                f"{max(waits):.1f} s",
            ]
        )
        figures[title] = {
            "frames_per_second": round(samples.rate(WITHOUT), 1),
            **{way: [round(each, 4) for each in share] for way, share in shares.items()},
            "seconds_to_first_picture": [round(wait, 2) for wait in waits],
        }
    header = ["", "frames/s without a viewer", WATCHED, DRAWN, "first picture"]
    print_table(header, rows)
    return figures


def _share(samples: Samples[str], way: str) -> tuple[float, float]:
    """Return the frames/s of a way over those without a viewer, and its standard error."""
    rates, others = samples.rates[way], samples.rates[WITHOUT]
    share = sum(rates) / sum(others)
    # Delta method for a ratio of means over paired rounds.
    excesses = [rate - share * other for rate, other in zip(rates, others, strict=True)]
    error = statistics.pstdev(excesses) / statistics.mean(others) / math.sqrt(len(rates))
    return share, error


def _view(
    arguments: Sequence[str], training: Training, stack: ExitStack
) -> tuple[str, psutil.Process]:
    """Start the viewer of a training; return its address and its process when it has a picture."""
    port = free_port(_HOST, 0)
    viewer_settings = ("viewer=web", f"viewer_host={_HOST}", f"viewer_port={port}")
    settings = settings_of(*arguments, "device=cpu", *viewer_settings)
    before, trainer = _children(), training.trainer
    stack.enter_context(viewer_beside(settings, trainer.env, trainer.folder))
    (viewer,) = _children() - before
    address = f"http://{_HOST}:{port}"
    end = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(AssertionError, OSError):
            _opened(address)
            return address, viewer
        if time.monotonic() > end:
            raise RuntimeError(f"{address}: no page, or no picture in it")


def _opened(address: str) -> float:
    """Return the seconds from opening the page in a new browser until it shows a picture."""
    before = _children()
    with tempfile.TemporaryDirectory() as folder, opened("about:blank", Path(folder)) as tab:
        _lowered(_children() - before)
        start = time.perf_counter()
        tab.call("Page.navigate", url=address)
        _wait_for_picture(tab)
        return time.perf_counter() - start


def _wait_for_picture(tab: Tab) -> None:
    """Wait until a picture of the environment covers a part of the page."""
    tab.wait_for("document.body.innerText.includes('episode ')")
    while (tab.picture().max(2) > _BACKGROUND).mean() < _LEAST_SHARE:
        pass


def _turn(
    training: Training,
    frames: int,
    seconds: float,
    everyone: Sequence[psutil.Process],
    running: Sequence[psutil.Process],
) -> Callable[[], float]:
    """Return the measurement of the frames/s of a training while some processes run."""

    def run() -> float:
        _signal(everyone, signal.SIGSTOP)
        _signal(running, signal.SIGCONT)
        trained, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            training(frames)
            trained += frames
        return trained / passed

    return run


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _lowered(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Give all threads of processes the lowest priority, and return the processes."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(thread.id, os.SCHED_IDLE, os.sched_param(0))
    return list(processes)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


if __name__ == "__main__":
    main(measure)
