"""Limits of containers, read from folders that look like those of Linux."""

from pathlib import Path

import pytest
import torch

from torchrl_gpu.devices import host, kinds
from torchrl_gpu.devices.containers import MemoryLimit, core_limit, memory_limit
from torchrl_gpu.devices.kinds import accelerator_of

GIB = 2**30
V1_NO_LIMIT = str(2**63 - 4096)


def system(root: Path, groups: str, **files: str) -> Path:
    """Write a folder with `proc` and `sys`; a `/` in the path of a file is written as `__`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v2(root: Path, **files: str) -> Path:
    return system(root, "0::/pod/job\n", **files)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", None), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1)],
)
def test_cores_of_cgroup_v2(quota: str, cores: int | None, tmp_path: Path) -> None:
    assert core_limit(v2(tmp_path, **{"pod__job__cpu-max": quota})) == cores


def test_the_smallest_limit_up_to_the_root_holds(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        **{
            "pod__job__cpu-max": "800000 100000",
            "pod__cpu-max": "300000 100000",
            "pod__job__memory-max": "max",
            "pod__memory-max": str(8 * GIB),
            "pod__memory-current": str(7 * GIB),
            "pod__memory-stat": f"anon {5 * GIB}\ninactive_file {2 * GIB}",
            "memory-max": str(4 * GIB),
            "memory-current": str(GIB),
        },
    )
    assert core_limit(root) == 3
    # The container as a whole has 3 GiB left, the pod the 1 GiB and the cache.
    assert memory_limit(root) == MemoryLimit(4 * GIB, 3 * GIB)


def test_memory_above_the_high_mark_does_not_count(tmp_path: Path) -> None:
    files = {"memory-max": str(8 * GIB), "memory-high": str(6 * GIB), "memory-current": "0"}
    assert memory_limit(v2(tmp_path, **files)) == MemoryLimit(6 * GIB, 6 * GIB)


def test_limits_of_cgroup_v1(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "4:memory:/docker/1f\n2:cpu,cpuacct:/docker/1f\n0::/\n",
        **{
            # The path of the host is missing in the container, whose group is at the top.
            "memory__memory-limit_in_bytes": str(2 * GIB),
            "memory__memory-usage_in_bytes": str(GIB),
            "memory__memory-stat": f"inactive_file 0\ntotal_inactive_file {GIB // 2}",
            "cpu__cpu-cfs_quota_us": "250000",
            "cpu__cpu-cfs_period_us": "100000",
        },
    )
    assert memory_limit(root) == MemoryLimit(2 * GIB, 3 * GIB // 2)
    assert core_limit(root) == 3


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert core_limit(tmp_path) is None
    assert memory_limit(tmp_path) is None
    root = system(
        tmp_path,
        "4:memory:/\n2:cpu:/\n",
        **{
            "memory__memory-limit_in_bytes": V1_NO_LIMIT,
            "cpu__cpu-cfs_quota_us": "-1",
            "cpu__cpu-cfs_period_us": "100000",
        },
    )
    assert core_limit(root) is None
    assert memory_limit(root) is None


def test_the_limits_of_a_container_are_those_of_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "core_limit", lambda: 1)
    monkeypatch.setattr(kinds, "memory_limit", lambda: MemoryLimit(4096, 1024))
    cpu = accelerator_of(torch.device("cpu"))
    assert cpu.name == "cpu, 1 core"
    assert (cpu.total_memory, cpu.free_memory) == (4096, 1024)
    assert host.num_cores() == 1
    assert len(host.usable_cores()) >= 1


def test_threads_for_every_core_are_those_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "core_limit", lambda: 1)
    with host.cpu_threads(2), host.cpu_threads(None):
        assert torch.get_num_threads() == 1
