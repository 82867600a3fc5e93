"""The cores of the host."""

from __future__ import annotations

import os


def usable_cores() -> list[int]:
    """Return the indices of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
