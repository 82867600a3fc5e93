"""Kill a training again and again, as a power cut would, and see whether it goes on.

The training is the program in a separate process. First it fills its replay, by random actions
without updates, and saves it. Then it runs each time until it has written a further checkpoint, and
is killed (kill -9) at a random moment within some seconds after it: every second time inside the
next save, and half of these times with its workers. Then every file of the newest checkpoint is
read, and the command that resumes the run starts the next one.

    python -m benchmarks.kill kills=100
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.fixture import Count, Seconds
from benchmarks.report import Figures, FiguresError, main, print_machine, print_table
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.files import PARTIAL_FILES
from torchrl_gpu.errors import ConfigurationError
from trainers.runs.policy_files import load_checkpoint

_ROOT = Path(__file__).parents[1]
_SETTINGS = (
    "device=cpu",
    "trainer.total_frames=1_000_000_000",
    "trainer.evaluation_interval=50_000",
    "trainer.evaluation_episodes=10",
    "trainer.checkpoint_interval=2_000",
)
_PATIENCE = 120.0  # seconds within which a training has to write its next checkpoint
_SECONDS_TO_FILL = 3600.0


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the program in a new process group."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "trainers.run", *arguments],
            stdout=output,
            stderr=output,
            cwd=_ROOT,
            start_new_session=True,
        )


def checkpoints_of(runs: Path) -> CheckpointFolder | None:
    """Return the checkpoints of the only run in a folder; None before there is one."""
    folder = next(runs.glob("**/checkpoints"), None)
    return None if folder is None else CheckpointFolder(folder)


def has_saved(runs: Path, before: Path | None) -> bool:
    """Return whether there is a checkpoint after an earlier one."""
    folder = checkpoints_of(runs)
    return folder is not None and folder.latest() != before


def waits_until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = _PATIENCE
) -> bool:
    """Return whether a condition holds before the process ends or the time is over."""
    end = time.perf_counter() + seconds
    while process.poll() is None and time.perf_counter() < end:
        if condition():
            return True
        time.sleep(0.001)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a training by a signal, after which it saves itself."""
    process.send_signal(signal.SIGTERM)
    wait_for_end(process)


def wait_for_end(process: subprocess.Popen[bytes], seconds: float = _PATIENCE) -> None:
    """Wait for the end of a program of `start`, and kill its group if it does not end in time.

    Raises:
        subprocess.TimeoutExpired: it has not ended by itself.
    """
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def check(checkpoint: Path, transitions: int) -> None:
    """Read all files of a checkpoint.

    Raises:
        ConfigurationError: a file is missing or damaged, or the replay has too few transitions.
    """
    load_checkpoint(checkpoint)
    parts = CheckpointFolder(checkpoint.parent).load_replay(checkpoint)
    if not parts:
        raise ConfigurationError(f"{checkpoint} has no replay")
    for part in parts:
        for tensor in part.values():
            tensor.read()
    found = sum(part["steps.reward"].shape.numel() for part in parts)
    if found < transitions:
        raise ConfigurationError(f"{checkpoint} has a replay of {found:,} transitions")


def strays_in(folder: Path) -> list[Path]:
    """Return the files of writes that did not end."""
    return sorted(folder.glob(f"**/{PARTIAL_FILES}"))


def measure(
    *,
    kills: Count = 100,
    replay: Count = 1_000_000,
    seconds: Seconds = 2.0,
    agent: str = "sac",
    env: str = "fanuc",
    seed: int = 0,
) -> Figures:
    """Kill a training at random moments, and count how often it went on.

    Args:
        kills: number of kills (100).
        replay: capacity of the replay, which is full before the first kill (1,000,000).
        seconds: longest time between a checkpoint and the kill, above 0 (2).
        agent: name of the agent (sac).
        env: name of the environment (fanuc).
        seed: seed of the moments (0).
    """
    print_machine()
    moments = random.Random(seed)
    went_on = inside = 0
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        runs, log = Path(temporary) / "runs", Path(temporary) / "log"
        fills = (f"trainer.{name}={replay}" for name in ("replay_capacity", "random_frames"))
        rare = (f"trainer.{name}_interval={replay}" for name in ("checkpoint", "evaluation"))
        first = [f"agent={agent}", f"env={env}", f"runs={runs}", "compile=off"]  # starts soon
        rest = (each for each in _SETTINGS if "_interval" not in each)
        process = start([*first, *rest, *fills, *rare], log)
        waits_until(partial(has_saved, runs, None), process, _SECONDS_TO_FILL)
        stop(process)
        folder = checkpoints_of(runs)
        newest = None if folder is None else folder.latest()
        if folder is None or newest is None:
            print(log.read_text()[-3000:])
            raise ConfigurationError("the training has not filled its replay")
        arguments = [f"checkpoint={folder.folder.parent}", *_SETTINGS]
        print(f"killed after {newest.stem}, with {replay:,} transitions in the replay", flush=True)
        for kill in range(kills):
            process = start(arguments, log)
            saved = waits_until(partial(has_saved, runs, newest), process)
            time.sleep(moments.uniform(0.0, seconds))
            if kill % 2:
                waits_until(lambda: bool(strays_in(runs)), process)
                time.sleep(moments.uniform(0.0, 0.01))
            with suppress(ProcessLookupError):
                send = os.killpg if kill % 4 < 2 else os.kill
                send(process.pid, signal.SIGKILL)
            wait_for_end(process)
            newest = folder.latest()
            assert newest is not None
            inside += bool(strays_in(folder.folder))
            try:
                check(newest, replay)
                went_on += saved
                if not saved:
                    problems.append(f"{kill}: no further checkpoint")
            except ConfigurationError as error:
                problems.append(f"{kill}: {error}".replace(temporary, "..."))
        frames = newest.stem
        process = start(arguments, log)
        waits_until(partial(has_saved, runs, newest), process)
        stop(process)
        left = strays_in(folder.folder.parent)
        if problems:
            print(log.read_text()[-3000:].replace(temporary, "..."))
    print_table(
        ["kills", "went on", "inside a save", "newest checkpoint", "stray files after a save"],
        [[f"{kills}", f"{went_on}", f"{inside}", frames, f"{len(left)}"]],
    )
    for problem in problems:
        print(problem)
    figures = {
        "agent": agent,
        "env": env,
        "kills": kills,
        "replay": replay,
        "went_on": went_on,
        "inside_a_save": inside,
        "strays": len(left),
    }
    if went_on < kills or left:
        raise FiguresError(figures)
    return figures


if __name__ == "__main__":
    main(measure)
