import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from subprocess import PIPE
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from torchrl_gpu.devices import nvidia
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import Cpu, accelerator_of
from torchrl_gpu.devices.nvidia import nvidia_utilization
from trainers import system
from trainers.system import SystemUsage

CPU = torch.device("cpu")
TICKS = 0.02  # seconds by which the counters of the system may differ from the time spent


def compute(seconds: float) -> None:
    """Take up a core for some processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_cpu_is_the_share_of_the_cores_since_the_row_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [])  # those of other tests
    outer, spent = time.perf_counter(), time.process_time()
    usage = SystemUsage(CPU)
    inner = time.perf_counter()
    compute(0.2)
    inner = time.perf_counter() - inner
    busy = usage.take()
    outer, spent = time.perf_counter() - outer, time.process_time() - spent
    cores = num_cores() * busy["system/cpu_percent"] / 100
    assert (0.2 - TICKS) / outer <= cores <= (spent + TICKS) / inner
    assert busy["system/memory_bytes"] > 2**20
    assert {*busy} == {"system/cpu_percent", "system/memory_bytes"}  # the device is the host
    time.sleep(0.2)
    assert usage.take()["system/cpu_percent"] < 60 / num_cores()


def test_worker_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_SECONDS_BETWEEN_SEARCHES", 0.0)
    usage = SystemUsage(CPU)
    alone = usage.take()["system/memory_bytes"]
    script = (
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
        "print(flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE)
    assert child.stdout is not None
    began = time.perf_counter()
    usage.begin()
    child.stdout.readline()
    found = usage.take()
    share = (0.3 - TICKS) / (time.perf_counter() - began) / num_cores()
    assert found["system/memory_bytes"] > alone + 2**20
    assert found["system/cpu_percent"] >= 100 * share
    child.communicate(b"\n")
    usage.take()  # a process that has ended is no error


def test_a_device_beside_the_host_has_metrics_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SystemUsage(CPU)
    asked: list[float] = []

    def utilization(self: Cpu, since: float) -> float:
        asked.append(since)
        return 81.0

    monkeypatch.setattr(Cpu, "utilization", utilization)
    monkeypatch.setattr(Cpu, "occupied_memory", 3 * 2**30)
    before = time.time()
    metrics = usage.take()
    usage.take()
    assert metrics["system/device_percent"] == 81.0
    assert metrics["system/device_memory_bytes"] == 3 * 2**30
    assert asked[0] <= before <= asked[1]  # the second row begins where the first one ends


def test_the_host_knows_no_utilization_of_a_device() -> None:
    accelerator = accelerator_of(CPU)
    assert accelerator.utilization(time.time()) is None
    assert accelerator.occupied_memory is None


class NVMLError(Exception):
    """Stands in for that of NVML."""


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(90, 5e6), (60, 11e6), (80, 12e6)], 70.0),  # the first one is from before
        ([], 33.0),
        (None, 33.0),
        ("no GPU", None),
    ],
)
def test_utilization_is_the_mean_of_the_samples_of_the_driver(
    samples: object, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(uuid: str) -> str:
        if samples == "no GPU":
            raise NVMLError
        return uuid

    def get_samples(gpu: str, kind: int, since: int) -> tuple[int, list[SimpleNamespace]]:
        assert (gpu, kind, since) == ("GPU-0", 1, 10_000_000)
        if not isinstance(samples, list):
            raise NVMLError
        values = [SimpleNamespace(uiVal=percent) for percent, _ in samples]
        return 1, [
            SimpleNamespace(sampleValue=value, timeStamp=at)
            for value, (_, at) in zip(values, samples, strict=True)
        ]

    nvml = ModuleType("pynvml")
    nvml.__spec__ = ModuleSpec("pynvml", None)
    nvml.__dict__.update(
        NVMLError=NVMLError,
        NVML_GPU_UTILIZATION_SAMPLES=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetSamples=get_samples,
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=33),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    nvidia._gpu.cache_clear()
    assert nvidia_utilization("GPU-0", 10.0) == expected
    nvidia._gpu.cache_clear()


def test_utilization_is_unknown_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "find_spec", lambda name: None)
    assert nvidia_utilization("GPU-0", 0.0) is None
