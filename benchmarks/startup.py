"""Measure the time of the README's command from its start to its first update.

The time includes imports, worker processes, the frames with random actions and the first update.
The targets come from the cache, as in every run but the first.

    python -m benchmarks.startup
"""

import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.fixture import Count
from benchmarks.report import print_figures, print_machine, print_table
from torchrl_gpu.commands import call_with_arguments

# Runs the command, and exits the process after the first update.
COMMAND = """
import os, sys, time
from torchrl_gpu.execution.execution import Execution

update = Execution.update

def first_update(self, *arguments):
    update(self, *arguments)
    print(time.time(), flush=True)
    os._exit(0)

Execution.update = first_update
from trainers.run import main
main()
"""


def seconds_to_first_update() -> float:
    """Start the command in a fresh process and return the seconds until its first update."""
    with tempfile.TemporaryDirectory() as runs:
        start = time.time()
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "agent=sac", "env=fanuc", f"runs={runs}"],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout.split()[-1]) - start


def measure(*, starts: Count = 5) -> int:
    """Measure several starts and print the median.

    Args:
        starts: number of starts, at least 1 (5).
    """
    print_machine()
    seconds_to_first_update()  # fills the cache of targets
    measured = [seconds_to_first_update() for _ in range(starts)]
    print_table(
        ["start", "seconds to the first update"],
        [[str(number), f"{seconds:.2f}"] for number, seconds in enumerate(measured, start=1)],
    )
    print_figures({"seconds_to_first_update": round(statistics.median(measured), 2)})
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
