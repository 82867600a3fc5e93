"""Kill one process of a run again and again, and see whether the run ends and goes on."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.kill import checkpoints_of, has_saved, start, wait_for_end, waits_until

LIMIT: Final = 60.0  # seconds within which the run has to end
_LATEST: Final = 3.0  # seconds from a checkpoint, or from the start of the processes, to the kill
_SECONDS_TO_REAP: Final = 10.0  # until the system has removed orphans that have ended
_PROGRAM: Final = ("python", "-m", "trainers.run")
_SETTINGS: Final = (
    *("agent=sac", "env=fanuc", "device=cpu", "devices=2", "compile=off", "threads=1"),
    *("env.num_envs=16", "agent.batch_size=64", "agent.hidden_sizes=[32]"),
    *("trainer.total_frames=1_000_000_000", "trainer.random_frames=200"),
    *("trainer.replay_capacity=20_000", "trainer.checkpoint_interval=800"),
    *("trainer.evaluation_interval=4_000", "trainer.evaluation_episodes=4"),
)


class Kill(NamedTuple):
    """Result of a kill.

    Attributes:
        seconds: time from the kill to the end of the program.
        named: whether the last line names the rank, and the exit code is 1.
        left: number of other processes of the run that are still there some seconds later.
        line: last line of the output.
    """

    seconds: float
    named: bool
    left: int
    line: str

    @property
    def succeeded(self) -> bool:
        """Whether all of it is as it should be."""
        return self.seconds < LIMIT and self.named and not self.left


def kill_ranks(kills: int, seed: int) -> tuple[list[Kill], list[bool]]:
    """Kill a random process of two at a random moment, a number of times.

    Three of four kills follow a new checkpoint; the fourth hits processes that have just started.
    After each kill the command of the last line starts the next run.

    Args:
        kills: number of kills.
        seed: seed of processes and moments.

    Returns:
        The kills, and for each run that had the time whether it has written a newer checkpoint.
    """
    draws = random.Random(seed)
    found, went_on, newest = [], [], None
    with tempfile.TemporaryDirectory() as temporary:
        runs, log = Path(temporary) / "runs", Path(temporary) / "log"
        arguments = [*_SETTINGS, f"runs={runs}"]
        for number in range(kills + 1):
            log.unlink(missing_ok=True)
            process = start(arguments, log)
            if number % 4 == 3 and number < kills:
                waits_until(partial(_has_ranks, process.pid), process)
            else:
                went_on.append(waits_until(partial(has_saved, runs, newest), process))
            if number == kills:
                os.killpg(process.pid, signal.SIGTERM)
                wait_for_end(process)
                break
            time.sleep(draws.uniform(0.0, _LATEST))
            rank = draws.randrange(2)
            kill, resume = _kill(process, rank, log)
            found.append(kill._replace(line=kill.line.replace(temporary, "...")))
            arguments = resume or arguments
            folder = checkpoints_of(runs)
            newest = None if folder is None else folder.latest()
    return found, went_on


def _kill(process: subprocess.Popen[bytes], rank: int, log: Path) -> tuple[Kill, list[str]]:
    """Kill a process of a run; return the result, and the arguments that resume the run."""
    tree = psutil.Process(process.pid).children(recursive=True)
    begin = time.perf_counter()
    ranks_of(process.pid)[rank].kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(2 * LIMIT)
    seconds = time.perf_counter() - begin
    left = psutil.wait_procs(tree, timeout=_SECONDS_TO_REAP)[1]
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    line = log.read_text().strip().splitlines()[-1]
    failure, _, command = line.partition("; to resume: ")
    named = failure == f"error: rank {rank} was ended by SIGKILL" and process.returncode == 1
    return Kill(seconds, named, len(left), line), shlex.split(command)[len(_PROGRAM) :]


def ranks_of(pid: int) -> list[psutil.Process]:
    """Return the processes of a run that its program has started, by rank."""
    ranks = []
    with suppress(psutil.Error):  # it has just ended
        for child in psutil.Process(pid).children():
            if "resource_tracker" not in str(child.cmdline()):
                ranks.append(child)
    return sorted(ranks, key=lambda process: process.pid)


def _has_ranks(pid: int) -> bool:
    return len(ranks_of(pid)) == 2
