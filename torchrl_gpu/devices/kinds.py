"""Kinds of devices: all differences between accelerators.

A class states the facts of its kind of device that torch does not know, and the table `KINDS`
registers the class; no other module checks `device.type`.
"""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar, Final

import psutil
import torch

from torchrl_gpu.devices.accelerator import Accelerator, Presence
from torchrl_gpu.devices.containers import memory_limit
from torchrl_gpu.devices.directml import probe_directml
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.nvidia import nvidia_utilization
from torchrl_gpu.errors import one_line
from torchrl_gpu.tables import counted

# Reason for no device of a kind that this build of torch supports.
NO_GPU: Final = "no GPU or no driver"

# Beginning of the reason where a driver is installed that does not work with this build of torch.
NOT_STARTED: Final = "its driver does not start with this torch"

_FROM_PYTORCH = (
    'pip install --force-reinstall "torch<2.14" --index-url https://download.pytorch.org/whl/'
)
_FROM_AMD = (
    'pip install --force-reinstall "torch[device-all]<2.14" '
    "--index-url https://repo.amd.com/rocm/whl-multi-arch/"
)
_PC_SYSTEMS = ("Linux", "WSL", "Windows")
# Not an extra: it requires torch 2.4.1, which pip refuses beside TorchRL's dependency hoptorch.
_WITH_DIRECTML = "pip install torch-directml==0.2.5.dev240914"


class Cpu(Accelerator):
    """Host CPU."""

    kind = "cpu"
    device_type = "cpu"
    reads_stall = False
    scaling_adam = True
    compiles_long_runs = True
    channels_last = True
    keeps_layouts = True
    communication = "gloo"

    @classmethod
    def look(cls) -> Presence:
        """Return one device: the host."""
        return Presence(1)

    @classmethod
    def names(cls, count: int) -> list[str]:
        """Return the single name of the host."""
        return ["cpu"]

    @classmethod
    def at(cls, index: int | None) -> torch.device:
        """Return the host, which torch names without an index."""
        return torch.device("cpu")

    @property
    def name(self) -> str:
        """Name with the number of cores."""
        return f"cpu, {counted(num_cores(), 'core')}"

    @property
    def total_memory(self) -> int:
        """Total memory of the machine, or of the container, in bytes."""
        total, limit = int(psutil.virtual_memory().total), memory_limit()
        return total if limit is None else min(total, limit.total)

    @property
    def free_memory(self) -> int:
        """Memory in bytes that processes can allocate without swapping."""
        free, limit = int(psutil.virtual_memory().available), memory_limit()
        return free if limit is None else min(free, limit.free)

    @property
    def used_memory(self) -> int:
        """Resident memory of this process and its children in bytes."""
        process = psutil.Process()
        used = int(process.memory_info().rss)
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                used += int(child.memory_info().rss)
        return used

    @property
    def occupied_memory(self) -> None:
        """None: it is the memory of the host, of which `used_memory` is the share of the run."""
        return None

    @property
    def bfloat16_products(self) -> bool:
        """Whether the processor has instructions for products of bfloat16: AVX-512 BF16 or AMX."""
        queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # from torch 2.6 on
        return any(self.call(query, default=False) for query in queries)

    @property
    def onednn(self) -> bool:
        """Whether torch contains oneDNN, with its products of dense tensors."""
        return torch.backends.mkldnn.is_available() and hasattr(
            torch.ops.mkldnn, "_linear_pointwise"
        )

    @property
    def compile(self) -> bool:
        """Whether `torch.compile` works here: it needs a C++ compiler on the machine."""
        builder = importlib.import_module("torch._inductor.cpp_builder")
        # Torch 2.4 has it under a private name.
        find_compiler = getattr(builder, "get_cpp_compiler", None) or builder._get_cpp_compiler
        try:
            find_compiler()
        except RuntimeError:
            return False
        return super().compile


class Cuda(Accelerator):
    """NVIDIA GPU."""

    kind = "cuda"
    device_type = "cuda"
    vendors = ("NVIDIA",)
    installs: ClassVar[Mapping[str, str]] = dict.fromkeys(_PC_SYSTEMS, f"{_FROM_PYTORCH}cu130")
    genesis_backend = "cuda"
    pinned_transfers = True
    scaling_adam = True
    captures = True
    communication = "nccl"  # in a build for ROCm this is RCCL

    @classmethod
    def look(cls) -> Presence:
        """Return the number of NVIDIA GPUs; none in a build of torch for ROCm."""
        if torch.version.hip:
            return Presence(0, f"this torch, {torch.__version__}, is built for ROCm")
        return _cuda_presence(torch.version.cuda is not None)

    @property
    def tf32(self) -> bool:
        """Whether the GPU has TensorFloat-32: Ampere (compute capability 8.0) and newer have it."""
        return bool(torch.cuda.get_device_capability(self.device) >= (8, 0))

    def utilization(self, since: float) -> float | None:
        """Return the mean since then, at most of the last seconds; it needs nvidia-ml-py."""
        uuid = getattr(self.call("get_device_properties"), "uuid", None)
        return nvidia_utilization(f"GPU-{uuid}", since)


class Rocm(Cuda):
    """AMD GPU, which torch addresses as `cuda`."""

    kind = "rocm"
    vendors = ("AMD",)
    installs: ClassVar[Mapping[str, str]] = dict.fromkeys(_PC_SYSTEMS, _FROM_AMD)
    genesis_backend = "amdgpu"
    captures = False  # not measured yet
    tf32 = False  # torch has it on a few AMD GPUs only, and behind an environment variable

    @classmethod
    def look(cls) -> Presence:
        """Return the number of AMD GPUs; none in a build of torch without ROCm."""
        if torch.version.cuda:
            return Presence(0, f"this torch, {torch.__version__}, is built for CUDA")
        return _cuda_presence(torch.version.hip is not None)

    def utilization(self, since: float) -> float | None:
        """Return that of the last moments; it needs amdsmi, by which torch asks."""
        if find_spec("amdsmi") is None:
            return None
        try:
            return float(self.call("utilization"))
        except Exception:  # amdsmi raises many kinds; a training does without the metric
            return None


class Xpu(Accelerator):
    """Intel GPU."""

    kind = "xpu"
    device_type = "xpu"
    vendors = ("Intel",)
    installs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("Linux", "Windows"), f"{_FROM_PYTORCH}xpu"
    )
    pinned_transfers = True
    communication = "xccl"

    @classmethod
    def look(cls) -> Presence:
        """Return the number of Intel GPUs."""
        return _presence(torch.xpu.device_count(), getattr(torch._C, "_has_xpu", False))

    @property
    def free_memory(self) -> int | None:
        """Free memory of the device in bytes; None if the driver does not report it."""
        try:
            return super().free_memory
        except RuntimeError:
            return None

    @property
    def float64(self) -> bool:
        """Whether the hardware supports float64; many Intel GPUs do not."""
        return bool(torch.xpu.get_device_properties(self.device).has_fp64)


class Mps(Accelerator):
    """Apple GPU."""

    kind = "mps"
    device_type = "mps"
    vendors = ("Apple",)
    installs: ClassVar[Mapping[str, str]] = {"Darwin": 'pip install "torch<2.14"'}
    genesis_backend = "metal"
    float64 = False

    @classmethod
    def look(cls) -> Presence:
        """Return one device on a machine with an Apple GPU, else none."""
        return _presence(int(torch.backends.mps.is_available()), torch.backends.mps.is_built())

    @property
    def total_memory(self) -> int | None:
        """Recommended maximum of GPU memory in bytes; None if torch does not report it."""
        return self.call("recommended_max_memory")

    @property
    def free_memory(self) -> int | None:
        """`total_memory` minus the allocations of this process, in bytes; None if unknown."""
        total = self.total_memory
        return None if total is None else max(0, total - self.used_memory)

    @property
    def used_memory(self) -> int:
        """Memory of the GPU in bytes that the driver has given to this process."""
        return int(self.call("driver_allocated_memory", default=0))


class DirectML(Accelerator):
    """Any GPU under Windows and WSL, through the package torch-directml."""

    kind = "directml"
    # Default name of an out-of-tree backend, which torch-directml keeps.
    device_type = "privateuseone"
    vendors = ("AMD", "NVIDIA", "Intel")
    installs: ClassVar[Mapping[str, str]] = {"WSL": _WITH_DIRECTML, "Windows": _WITH_DIRECTML}
    lerp = False
    byte_views = False  # its tensors have no storage
    searchsorted = False
    float64 = False
    fused_adam = False  # the registered kernel copies all tensors to the CPU and back

    @classmethod
    def look(cls) -> Presence:
        """Return the number of GPUs; asks a child process if torch-directml is installed."""
        return probe_directml()

    @classmethod
    def at(cls, index: int | None) -> torch.device:
        """Return the torch device of an index; only after `look` has found that it works."""
        return importlib.import_module("torch_directml").device(index)

    @property
    def name(self) -> str:
        """Name of the hardware."""
        package = sys.modules.get("torch_directml")  # imported by `at`, which returns the device
        return super().name if package is None else str(package.device_name(self.device.index))


# All kinds in the order of `device=auto`; a new kind is one class and one entry.
KINDS: Final[tuple[type[Accelerator], ...]] = (Cuda, Rocm, Xpu, Mps, DirectML, Cpu)


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the capabilities of a device of any kind, which this machine need not have."""
    return kinds_by_type().get(device.type, Accelerator)(device)


def kinds_by_type() -> dict[str, type[Accelerator]]:
    """Return the kinds by `device.type`; `cuda` is NVIDIA or AMD, as torch is built."""
    other = Cuda if torch.version.hip else Rocm
    return {kind.device_type: kind for kind in KINDS if kind is not other}


def available_devices() -> list[str]:
    """Return the names of all devices of this machine, in order of choice, for `device=`."""
    return [name for kind in KINDS for name in kind.names(kind.look().number)]


def _cuda_presence(is_built: bool) -> Presence:
    """Return the number of GPUs that torch addresses as `cuda`, or the reason for none.

    Torch counts them without starting the driver, which may be too old.
    """
    count = torch.cuda.device_count() if is_built else 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if count and not torch.cuda.is_available():
            sentences = [str(warning.message).partition(". ")[0] for warning in said]
            cause = "".join(f": {one_line(sentence)}" for sentence in sentences[:1])
            return Presence(0, f"{NOT_STARTED}, {torch.__version__}{cause}")
    return _presence(count, is_built)


def _presence(count: int, is_built: bool) -> Presence:
    """Return the number of devices that torch counts, or the reason for none."""
    if count:
        return Presence(count)
    missing = f"not in this torch, {torch.__version__}"
    return Presence(0, NO_GPU if is_built else missing)
