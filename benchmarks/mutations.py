"""Count the damaged files of runs that are neither loaded nor refused in one short line.

Bits flip, files are cut and spliced, numbers become huge, tensors change shape or overlap, names
are those of other code: in checkpoints, replays, policy files, `best.json`, `metrics.csv` and
`config.yaml` of an off-policy, an on-policy and a prioritized agent. Damage of the content comes
with a valid checksum. Each file is read in one way: loaded into a trainer, as a policy alone, or by
the program, which resumes, evaluates or films. A worker process that reads for more than 5 seconds
is ended; its memory is limited to the need of whole files, the size of the damaged one and 16 MiB.

    python -m benchmarks.mutations mutations=10_000
"""

import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from benchmarks.fixture import Count
from benchmarks.report import Figures, FiguresError, main, print_machine, print_table
from tests.helpers.damaged_runs import DamagedRuns, refusal

_SECONDS = 5.0  # for one file
_START = 120.0  # until a worker is ready

# The program takes several times as long as the library alone.
_WAYS = ("load",) * 10 + ("load_policy",) * 7 + ("resume", "mode=eval", "mode=demo")


class Reading(NamedTuple):
    """How the reading of a damaged file ended.

    Attributes:
        seed: seed of the damage.
        what: agent, file and kind of the damage.
        way: way in which the file was read.
        end: `loaded`, `refused`, or the failure in words.
        seconds: time of the reading.
    """

    seed: int
    what: str
    way: str
    end: str
    seconds: float


def work(pipe: Connection, folder: Path) -> None:
    """Read the damaged files of the seeds that arrive in a pipe, and send how it ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    runs = DamagedRuns(folder)
    for way in runs.ways.values():  # imports, and the memory for whole files
        way(runs.whole())
    pipe.send(None)
    while (seed := pipe.recv()) is not None:
        name = _WAYS[seed % len(_WAYS)]
        damaged = runs.damaged(seed, name)
        pipe.send((str(damaged), name))
        started = time.perf_counter()
        try:
            end = "loaded" if refusal(runs.ways[name], damaged) is None else "refused"
        except BaseException as error:
            end = f"{type(error).__name__}: {str(error)[:100]!r}"
        pipe.send((end, time.perf_counter() - started))


def readings(seeds: Iterator[int]) -> Iterator[Reading]:
    """Yield how the reading of each damaged file ended; a worker that failed is replaced."""
    context = multiprocessing.get_context("spawn")
    seed = next(seeds, None)
    while seed is not None:
        with tempfile.TemporaryDirectory() as folder:
            pipe, other = context.Pipe()
            worker = context.Process(target=work, args=(other, Path(folder)), daemon=True)
            worker.start()
            other.close()
            if not pipe.poll(_START):
                raise TimeoutError("the worker process does not start")
            pipe.recv()
            while seed is not None:
                pipe.send(seed)
                what, way, end, seconds = "", "", "crash", 0.0
                with suppress(EOFError, ConnectionError):
                    what, way = pipe.recv()
                    if pipe.poll(_SECONDS):
                        end, seconds = pipe.recv()
                    else:
                        end, seconds = f"slower than {_SECONDS:g} s", _SECONDS
                yield Reading(seed, what, way, end, seconds)
                seed = next(seeds, None)
                if end not in ("loaded", "refused"):
                    break
            worker.kill()
            worker.join()


def measure(*, mutations: Count = 10_000, first: Annotated[int, Field(ge=0)] = 0) -> Figures:
    """Damage files by seed, read them, and list those that are neither loaded nor refused.

    Args:
        mutations: number of damaged files, at least 1 (10,000).
        first: seed of the first one, at least 0 (0).
    """
    print_machine()
    ends: dict[str, Counter[str]] = {}
    failed: list[Reading] = []
    slowest = 0.0
    for reading in readings(iter(range(first, first + mutations))):
        name = reading.what.partition(": ")[2]
        is_good = reading.end in ("loaded", "refused")
        ends.setdefault(name, Counter())[reading.end if is_good else "failed"] += 1
        slowest = max(slowest, reading.seconds)
        if not is_good:
            failed.append(reading)
            print(f"seed {reading.seed}, {reading.way}, {reading.what}: {reading.end}", flush=True)
    columns = ("refused", "loaded", "failed")
    total = sum(ends.values(), Counter())
    rows = [[kind, *(f"{ends[kind][end]:,}" for end in columns)] for kind in sorted(ends)]
    rows.append(["all", *(f"{total[end]:,}" for end in columns)])
    print_table(["damage", *columns], rows)
    figures: dict[str, float] = {"mutations": mutations, **{end: total[end] for end in columns}}
    figures |= {"slowest_seconds": round(slowest, 2)}
    if failed:
        raise FiguresError(figures)
    return figures


if __name__ == "__main__":
    main(measure)
