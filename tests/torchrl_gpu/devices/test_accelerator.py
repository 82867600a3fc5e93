import os
import shutil
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tests.stand_in import count_host_reads
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import accelerator_of, available_devices
from torchrl_gpu.tables import counted

CPU = torch.device("cpu")

FUSED: dict[str, Any] = {"fused": True, "capturable": False}
FUSED_AND_CAPTURABLE: dict[str, Any] = {"fused": True, "capturable": True}
CAPTURABLE: dict[str, Any] = {"fused": None, "capturable": True}

# By device name: kind, pinned transfers, flags of Adam, graphs, own random number generator.
# None of these devices has to exist on the machine.
KINDS: dict[str, tuple[str, bool, dict[str, Any], bool, bool]] = {
    "cpu": ("cpu", False, FUSED, False, False),
    "cuda": ("cuda", True, FUSED_AND_CAPTURABLE, True, True),
    "cuda:1": ("cuda", True, FUSED_AND_CAPTURABLE, True, True),
    "xpu": ("xpu", True, FUSED_AND_CAPTURABLE, True, True),
    "mps": ("mps", False, FUSED, False, True),
    "hpu": ("other", False, FUSED_AND_CAPTURABLE, False, False),
}


@pytest.mark.parametrize("name", KINDS)
def test_capabilities_of_each_kind_of_device(name: str) -> None:
    kind, pinned_transfers, adam_options, graphs, has_generator = KINDS[name]
    accelerator = accelerator_of(torch.device(name))
    assert accelerator.kind == kind
    assert accelerator.pinned_transfers == pinned_transfers
    assert accelerator.adam_options == adam_options
    assert accelerator.graphs == graphs
    assert accelerator.has_generator == has_generator
    assert accelerator.channels_last == (kind == "cpu")


def test_a_function_without_a_signature_is_called_without_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "hpu", SimpleNamespace(largest=max), raising=False)
    assert accelerator_of(torch.device("hpu")).call("largest", 1, 2) == 2


def test_amd_appears_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    accelerator = accelerator_of(torch.device("cuda"))
    assert accelerator.kind == "rocm"
    assert accelerator.choice == "rocm:0"
    assert accelerator.pinned_transfers
    assert accelerator.adam_options == FUSED_AND_CAPTURABLE
    assert accelerator.graphs


@pytest.mark.directml
def test_directml_has_no_fused_adam_and_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    # The default name: other tests may have renamed the out-of-tree backend of this process.
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    accelerator = accelerator_of(SimpleNamespace(type="privateuseone"))  # type: ignore[arg-type]
    assert accelerator.kind == "directml"
    assert accelerator.adam_options == CAPTURABLE
    assert not accelerator.pinned_transfers
    assert not accelerator.float64
    assert not accelerator.lerp
    assert not accelerator.byte_views
    assert not accelerator.graphs
    assert not accelerator.has_generator
    assert not accelerator.compile


def test_capabilities_of_an_unknown_backend(accelerator: torch.device) -> None:
    record = accelerator_of(accelerator)
    assert record.kind == "other"
    assert record.name == str(accelerator)
    assert record.driver is None
    assert record.total_memory is None
    assert record.free_memory is None
    assert record.adam_options == CAPTURABLE  # it has no fused kernel
    assert not record.pinned_transfers
    assert record.float64
    assert record.autocast_dtypes == ()  # it has no kernels under autocast
    assert not record.compile
    assert not record.graphs
    assert record.has_generator


@pytest.mark.directml
def test_cpu() -> None:
    cpu = accelerator_of(CPU)
    memory = psutil.virtual_memory()
    assert cpu.choice == "cpu"
    assert cpu.name == f"cpu, {counted(num_cores(), 'core')}"
    assert cpu.total_memory == memory.total
    assert cpu.free_memory == pytest.approx(memory.available, rel=0.5)
    assert torch.zeros((), dtype=torch.float64, device=CPU).dtype == torch.float64
    assert cpu.float64
    assert "cpu" in available_devices()


@pytest.mark.directml
def test_the_cpu_supports_its_autocast_dtypes() -> None:
    dtypes = accelerator_of(CPU).autocast_dtypes
    assert torch.bfloat16 in dtypes
    for dtype in dtypes:
        with torch.autocast("cpu", dtype):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.directml
@pytest.mark.skipif(os.name == "nt", reason="Windows has other compiler names")
def test_the_cpu_compiles_if_a_compiler_exists() -> None:
    has_compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    assert accelerator_of(CPU).compile == has_compiler


class _Xpu(SimpleNamespace):
    """Stands in for `torch.xpu` with the properties of one device."""

    def __init__(self, has_fp64: bool, free: int | None) -> None:
        super().__init__(device_count=lambda: 2)
        self._has_fp64, self._free = has_fp64, free

    def get_device_properties(self, device: torch.device) -> Any:
        assert device == torch.device("xpu:1")
        return SimpleNamespace(name="Arc", total_memory=16 * 2**30, has_fp64=self._has_fp64)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        assert device == torch.device("xpu:1")
        if self._free is None:
            raise RuntimeError("the driver does not tell")
        return self._free, 16 * 2**30


@pytest.mark.parametrize("has_fp64", [True, False])
@pytest.mark.parametrize("free", [2**30, None])
def test_xpu(has_fp64: bool, free: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "xpu", _Xpu(has_fp64, free))
    xpu = accelerator_of(torch.device("xpu:1"))
    assert (xpu.name, xpu.total_memory, xpu.free_memory) == ("Arc", 16 * 2**30, free)
    assert xpu.float64 == has_fp64
    assert "xpu:1" in available_devices()


def test_synchronizing_reaches_the_device(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with count_host_reads() as counter:
        accelerator_of(CPU).synchronize()
        assert counter.host_reads == 0
        accelerator_of(accelerator).synchronize()
        assert counter.host_reads == 1
        # A backend without the call waits for a copy to the host.
        monkeypatch.setattr(torch, accelerator.type, SimpleNamespace())
        accelerator_of(accelerator).synchronize()
        assert counter.host_reads == 2
    waits = []
    monkeypatch.setattr(torch, "mps", SimpleNamespace(synchronize=lambda: waits.append("mps")))
    accelerator_of(torch.device("mps")).synchronize()
    assert waits == ["mps"]


def test_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"recommended_max_memory": lambda: 10, "driver_allocated_memory": lambda: 4}
    monkeypatch.setattr(torch, "mps", SimpleNamespace(**memory))
    mps = accelerator_of(torch.device("mps"))
    assert (mps.total_memory, mps.free_memory) == (10, 6)
    assert not mps.float64
    monkeypatch.setattr(torch, "mps", SimpleNamespace())  # an older torch does not report memory
    assert (mps.total_memory, mps.free_memory) == (None, None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda() -> None:
    cuda = accelerator_of(torch.device("cuda:0"))
    assert cuda.name == torch.cuda.get_device_name(0)
    assert cuda.total_memory is not None
    assert cuda.free_memory is not None
    assert 0 < cuda.free_memory <= cuda.total_memory
    for dtype in cuda.autocast_dtypes:
        with torch.autocast("cuda", dtype):
            ones = torch.ones(2, 2, device="cuda")
            assert (ones @ ones).dtype == dtype


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.06 GB)"), True),
        (RuntimeError("level_zero backend failed with UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), True),
        (RuntimeError("Could not allocate tensor with 4096 bytes. There is not enough GPU"), True),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_errors_of_allocators_are_recognized(error: Exception, expected: bool) -> None:
    assert Accelerator(torch.device("cpu")).is_out_of_memory(error) == expected


def test_the_error_of_a_real_allocation_is_recognized() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert accelerator_of(torch.device("cpu")).is_out_of_memory(caught.value)
