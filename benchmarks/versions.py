"""Measure trainings and gradient steps beside those of another version of this repository.

Both versions run the same commands in turns, one program after the other, on one thread and with
the packages of this environment. A training counts from a number of frames on, so that start-up,
random actions and compiling do not count, and is then stopped. Gradient steps are those of agents
that see images, in processor time, as short and as long runs choose to take them.

    git worktree add ../before COMMIT
    python -m benchmarks.versions before=../before
"""

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.fixture import Count
from benchmarks.measuring import Measurement, Samples, take_turns
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.host import ONE_THREAD
from torchrl_gpu.errors import ConfigurationError

_HERE: Final = Path(__file__).parents[1]
_SECONDS_TO_STOP: Final = 60.0  # after which a training is killed
TRAININGS: Final = {
    f"{title}, marinenav": (
        f"agent={agent}",
        "env=marinenav",
        "device=cpu",
        "trainer.log_interval=1000",
    )
    for title, agent in {"AC-IQN": "ac_iqn", "SAC": "sac", "DDPG": "ddpg"}.items()
}


IMAGE_STEPS: Final = {  # arguments of `benchmarks.images`
    f"{title}, images, {length} run": (f"agent={agent}", f"long={is_long}")
    for title, agent in {"DDPG": "ddpg", "PPO": "ppo"}.items()
    for length, is_long in {"short": "false", "long": "true"}.items()
}
_ROUND: Final = 20  # gradient steps


def frames_per_second(
    version: Path, arguments: tuple[str, ...], first_frame: int, frames: int
) -> float:
    """Return the rate of a training in a number of frames from its first row that counts."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainers.run", *arguments],
            cwd=folder,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": str(version)},
            stdout=output,
            stderr=output,
        )
        try:
            rows: list[tuple[int, float]] = []
            while not rows or rows[-1][0] < rows[0][0] + frames:
                if process.poll() is not None:
                    text = Path(folder, "output.txt").read_text().strip()
                    raise ConfigurationError(f"{version}: the training ended: {text[-400:]}")
                time.sleep(0.1)
                rows = _rows(Path(folder), first_frame)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    (begin, started), (end, stopped) = rows[0], rows[-1]
    return (end - begin) / (stopped - started)


def _rows(folder: Path, first_frame: int) -> list[tuple[int, float]]:
    """Return frames and seconds of the metrics of the only run in a folder, from a frame on."""
    file = next(folder.glob("**/metrics.csv"), None)
    # The last line may not be complete.
    lines = [] if file is None else file.read_text().rpartition("\n")[0].splitlines()
    rows = [(int(row["frames"]), float(row["seconds"])) for row in csv.DictReader(lines)]
    return [row for row in rows if row[0] >= first_frame]


@contextmanager
def gradient_steps(version: Path, arguments: tuple[str, str]) -> Iterator[Measurement]:
    """Start a version of an image agent; yield a function that measures its gradient steps/s."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "benchmarks" / "images.py"), *arguments],
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(version)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def measure() -> float:
        print(_ROUND, file=requests, flush=True)
        if not (answer := answers.readline()):
            raise ConfigurationError(f"{version}: the agent ended; see its output above")
        return _ROUND / float(answer)

    try:
        yield measure
    finally:
        requests.close()  # which ends it
        process.wait(_SECONDS_TO_STOP)


def measure(
    *,
    before: Path,
    rounds: Count = 2,
    first_frame: Count = 16_000,
    frames: Count = 8_000,
    image_rounds: Count = 25,
) -> Figures:
    """Measure everything in turns, and print the medians of all rounds.

    Args:
        before: folder of the other version, a checkout of this repository.
        rounds: number of rounds of each training after a warm-up, at least 1 (2).
        first_frame: number of frames of each training that do not count, at least 1 (16,000).
        frames: number of frames that count, at least 1 (8,000).
        image_rounds: number of rounds of 20 gradient steps after a warm-up, at least 1 (25).
    """
    if not (before / "trainers/run.py").is_file():
        raise ConfigurationError(f"before={before}: not a checkout of this repository")
    print_machine()
    table: list[list[str]] = []
    figures: dict[str, dict[str, float]] = {}
    versions = {"before": before.resolve(), "now": _HERE}

    def note(title: str, unit: str, samples: Samples[str]) -> None:
        rates = [samples.rate(name) for name in versions]
        gain = samples.ratio("now", "before")
        table.append([title, unit, *(f"{rate:,.0f}" for rate in rates), f"{gain:.2f} x"])
        found = dict(zip(versions, rates, strict=True)) | {"gain": gain}
        figures[title] = {name: round(value, 3) for name, value in found.items()}

    for title, arguments in TRAININGS.items():
        sides = {
            name: partial(frames_per_second, version, arguments, first_frame, frames)
            for name, version in versions.items()
        }
        note(title, "frames/s", take_turns(sides, rounds))
    for title, arguments_of_agent in IMAGE_STEPS.items():
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(gradient_steps(version, arguments_of_agent))
                for name, version in versions.items()
            }
            note(title, "gradient steps/s", take_turns(servers, image_rounds))
    print_table(["", "unit", *versions, "gain"], table)
    return figures


if __name__ == "__main__":
    main(measure)
