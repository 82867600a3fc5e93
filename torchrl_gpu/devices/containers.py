"""Limits of a container: processor time and memory of the control groups of this process.

Docker, Kubernetes and Slurm set them; the system still reports the cores and the memory of the
whole machine. Control groups have two versions, cgroup v1 and v2. In each, the limits of all groups
from that of this process up to the root hold.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path("/")

# Cgroup v1 writes the largest number of whole pages for no limit.
_NO_LIMIT: Final = 2**62


class MemoryLimit(NamedTuple):
    """Memory of a container in bytes, which its processes use together."""

    total: int
    free: int  # with the cache of files


def core_limit(root: Path = _ROOT) -> int | None:
    """Return the number of cores of which this process has the time, rounded up; None for all.

    `root` is the folder of `proc` and `sys`.
    """
    limits = []
    for group in _groups(root, "cpu"):
        words = _words(group / "cpu.max")
        words = words or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdecimal():  # neither `max` nor -1
            limits.append(max(1, math.ceil(int(words[0]) / int(words[1]))))
    return min(limits, default=None)


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """Return the memory of the container of this process; None without a limit.

    Above `memory.high` the kernel slows processes down, so it counts as a limit. `root` is the
    folder of `proc` and `sys`.
    """
    limits = []
    for group in _groups(root, "memory"):
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        found = [int(w) for n in names for w in _words(group / n) if w.isdecimal()]
        total = min(found, default=_NO_LIMIT)
        if total < _NO_LIMIT:
            used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
            words = _words(group / "memory.stat")
            stat = {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
            # In v1 the first of them counts the groups below as well, as v2 always does.
            cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            limits.append((total, max(0, total - int(used[0]) + cache)))
    if not limits:
        return None
    totals, rests = zip(*limits, strict=True)
    return MemoryLimit(min(totals), min(rests))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of this process that have a controller, innermost first.

    In a container, the path of a group may be that on the host; the folder at the top is then that
    of the container.
    """
    top = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            place = top / controller if controllers else top
            group = place / path.strip("/")
            while place in group.parents:
                yield group
                group = group.parent
            yield place


def _words(path: Path) -> list[str]:
    return text_of(path).split()


def text_of(path: Path) -> str:
    """Return the text of a file without white space around it; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
