import os
import platform
import subprocess
import sys

import pytest

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


def churn(**variables: str) -> tuple[bool, int]:
    """Return whether the allocator was tuned, and the page faults after it has warmed up."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    output = subprocess.run(
        [sys.executable, "-c", _CHURN],
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tuned, faults = output.split()
    return tuned == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    tuned, faults = churn()
    assert tuned
    assert faults < 1_000  # of the 10 * 9,766 pages that are written


def test_settings_of_the_user_take_precedence() -> None:
    tuned, _ = churn(MALLOC_TRIM_THRESHOLD_="131072")
    assert not tuned
