"""Measure how long commands take until they answer, beside the import of torch alone.

The training is the README's command, until its first batched step and its first update: imports,
worker processes, and the frames with random actions. The targets come from the cache, as in every
run but the first. The processor time of the main process leaves out the delays of a busy machine.

    python -m benchmarks.startup
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks.fixture import Count
from benchmarks.report import Figures, main, print_machine, print_table

# Prints the time and the processor time at the first batched step and at the first update, then
# exits the process. The program itself imports torch, so that its way of importing is measured.
_TRAINING = """
import json, os, time
from trainers import run

settings_of, reached = run.settings_of, []

def note():
    reached.append([time.time(), time.process_time()])

def watched_settings(*arguments):
    settings = settings_of(*arguments)
    from torchrl_gpu.acting.collector import BatchCollector
    from torchrl_gpu.execution.execution import Execution
    finish, update = BatchCollector.finish, Execution.update

    def first_finish(self):
        BatchCollector.finish = finish
        transition = finish(self)
        note()
        return transition

    def first_update(self, *arguments):
        update(self, *arguments)
        note()
        print(json.dumps(reached), flush=True)
        os._exit(0)

    BatchCollector.finish, Execution.update = first_finish, first_update
    return settings

run.settings_of = watched_settings
run.main()
"""

_RUN = ["-m", "trainers.run", "agent=sac", "env=fanuc"]

# Commands that end by themselves.
_ANSWERS = {
    "import torch": ["-c", "import torch"],
    "mistyped setting": [*_RUN, "agent.learnig_rate=1"],
    "--help": [*_RUN, "--help"],
}


class Spent(NamedTuple):
    """Time until an answer.

    Attributes:
        seconds: time since the start of the process, in seconds.
        cpu: processor time of the process, in seconds.
    """

    seconds: float
    cpu: float


def time_of_answer(arguments: list[str]) -> Spent:
    """Run Python with arguments, and return the time until it ends; its children do not count."""
    start = time.time()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    return Spent(time.time() - start, usage.ru_utime + usage.ru_stime)


def times_of_training() -> dict[str, Spent]:
    """Start the command in a fresh process, and return the times of first step and update."""
    with tempfile.TemporaryDirectory() as runs:
        start = time.time()
        done = subprocess.run(
            [sys.executable, "-c", _TRAINING, *_RUN[2:], f"runs={runs}"],
            check=True,
            capture_output=True,
            text=True,
        )
    reached = json.loads(done.stdout.splitlines()[-1])
    names = ("first frames", "first update")
    return {n: Spent(t - start, cpu) for n, (t, cpu) in zip(names, reached, strict=True)}


def measure(*, starts: Count = 5) -> Figures:
    """Measure several starts of each command in turns, and print the medians.

    Args:
        starts: number of starts, at least 1 (5).
    """
    print_machine()
    times_of_training()  # fills the cache of targets
    rounds = [
        {name: time_of_answer(command) for name, command in _ANSWERS.items()} | times_of_training()
        for _ in range(starts)
    ]
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for name in rounds[0]:
        seconds, cpu = map(statistics.median, zip(*(each[name] for each in rounds), strict=True))
        rows.append([name, f"{seconds:.2f}", f"{cpu:.2f}"])
        key = name.strip("-").replace(" ", "_")
        figures |= {f"{key}_seconds": round(seconds, 2), f"{key}_cpu_seconds": round(cpu, 2)}
    print_table(["until", "seconds", "processor seconds"], rows)
    return figures


if __name__ == "__main__":
    main(measure)
