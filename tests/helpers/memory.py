"""Memory of processes."""

import re
from pathlib import Path

import pytest

_STATUS = Path("/proc/self/status")
needs_peak = pytest.mark.skipif(not _STATUS.exists(), reason="needs /proc to read the peak")


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])
