"""Place of this process among those that torchrun or a scheduler has started."""

import os
from typing import Final

import psutil

_PLACE: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


def is_launched() -> bool:
    """Return whether a launcher has started this process."""
    return all(name in os.environ for name in _PLACE)


def num_restarts() -> int:
    """Return how often the launcher has started the processes again, because one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if is_launched() else 0


def launched_at() -> float:
    """Return the time at which the launcher has begun, as `time.time` has it."""
    return float(psutil.Process(os.getppid()).create_time())


def rank() -> int:
    """Return the number of this process among all, from 0; 0 for one without a launcher."""
    return int(os.environ["RANK"]) if is_launched() else 0


def num_processes() -> int:
    """Return the number of processes on all machines; 1 without a launcher."""
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def local_place() -> tuple[int, int]:
    """Return the number of this process among those on its machine, and their number."""
    return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
