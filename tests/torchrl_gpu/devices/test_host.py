import os
import platform
import subprocess
import sys
from threading import Event, Thread
from typing import Any
from unittest import mock

import pytest

from tests.helpers.forks import result_of
from torchrl_gpu.devices import host
from torchrl_gpu.devices.host import usable_cores

# Allocates and frees 40 MB in tensors of 2 MB, 20 times, and prints the page faults of the last 10.
_CHURN = """
import resource
import torch
from torchrl_gpu.devices.host import keep_freed_memory

print(keep_freed_memory())
for turn in range(20):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(512, 1024) for _ in range(20)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    output = subprocess.run(
        [sys.executable, "-c", _CHURN],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tuned, faults = output.split()
    assert tuned == "True"
    assert int(faults) < 1_000  # of the 10 * 9,766 pages that are written


def test_settings_of_the_user_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not host.keep_freed_memory()


CORES = usable_cores()
needs_affinity = pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(CORES) < 2, reason="no two cores to divide"
)


def shared(rank: int, count: int, limit: int | None, own: list[int] | None = None) -> list[Any]:
    """Return the cores of a process, those of its thread, and its number of cores.

    Args:
        rank: number of the process.
        count: number of processes on this machine.
        limit: limit of the container.
        own: cores that a launcher has given to the process; None for those of its parent.
    """

    def share() -> list[Any]:
        if own is not None:
            os.sched_setaffinity(0, own)
        mock.patch.object(host, "core_limit", return_value=limit).start()
        end = Event()
        thread = Thread(target=end.wait)
        thread.start()
        host.share_cores(rank, count)
        assert thread.native_id is not None
        of_thread = sorted(os.sched_getaffinity(thread.native_id))
        end.set()
        return [host.usable_cores(), of_thread, host.num_cores()]

    found: list[Any] = result_of(share)
    return found


@needs_affinity
def test_processes_of_a_machine_divide_its_cores() -> None:
    (first, of_thread, number), (second, *_) = (shared(rank, 2, None) for rank in range(2))
    assert first + second == CORES
    assert abs(len(first) - len(second)) <= 1
    assert of_thread == first
    assert number == len(first)


@needs_affinity
def test_cores_that_a_launcher_has_divided_stay() -> None:
    assert shared(1, 2, None, own=CORES[:1]) == [CORES[:1], CORES[:1], 1]


@needs_affinity
def test_more_processes_than_cores_use_all_of_them() -> None:
    assert shared(0, len(CORES) + 1, None) == [CORES, CORES, len(CORES)]


@needs_affinity
def test_processes_divide_the_time_of_their_container() -> None:
    assert shared(0, len(CORES) + 1, len(CORES)) == [CORES, CORES, 1]
