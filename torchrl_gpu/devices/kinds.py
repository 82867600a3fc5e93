"""Kinds of devices: all differences between accelerators.

A class states for its kind of device what torch does not know, and the table at the end registers
the class; no other module checks `device.type`.
"""

from __future__ import annotations

import importlib
import os

import psutil
import torch
from torch import Tensor

from torchrl_gpu.devices.accelerator import Accelerator


class Cpu(Accelerator):
    """Host CPU."""

    kind = "cpu"

    @classmethod
    def names(cls) -> list[str]:
        """Return the single name of the host."""
        return ["cpu"]

    @property
    def name(self) -> str:
        """Name with the number of cores."""
        return f"cpu, {os.cpu_count()} cores"

    @property
    def total_memory(self) -> int:
        """Total memory of the machine in bytes."""
        return int(psutil.virtual_memory().total)

    @property
    def free_memory(self) -> int:
        """Memory in bytes that processes can allocate without swapping."""
        return int(psutil.virtual_memory().available)

    @property
    def compile(self) -> bool:
        """Whether `torch.compile` works here: it needs a C++ compiler on the machine."""
        builder = importlib.import_module("torch._inductor.cpp_builder")
        try:
            builder.get_cpp_compiler()
        except RuntimeError:
            return False
        return super().compile

    @property
    def has_generator(self) -> bool:
        """False: the host's generator is saved separately, as torch's default generator."""
        return False


class Cuda(Accelerator):
    """NVIDIA GPU."""

    kind = "cuda"
    pinned_transfers = True

    @classmethod
    def names(cls) -> list[str]:
        """Return one name for each GPU."""
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


class Rocm(Cuda):
    """AMD GPU, which torch addresses as `cuda`."""

    kind = "rocm"


class Xpu(Accelerator):
    """Intel GPU."""

    kind = "xpu"
    pinned_transfers = True

    @classmethod
    def names(cls) -> list[str]:
        """Return one name for each GPU."""
        return [f"xpu:{index}" for index in range(torch.xpu.device_count())]

    @property
    def free_memory(self) -> int | None:
        """Free memory of the device in bytes; None where the driver does not report it."""
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

    @classmethod
    def names(cls) -> list[str]:
        """Return the single name, or none where there is no Apple GPU."""
        return ["mps:0"] if torch.backends.mps.is_available() else []

    @property
    def total_memory(self) -> int | None:
        """Recommended maximum of GPU memory in bytes; None where torch does not report it."""
        return self._ask("recommended_max_memory")

    @property
    def free_memory(self) -> int | None:
        """`total_memory` minus the allocations of this process, in bytes; None if unknown."""
        total = self.total_memory
        return None if total is None else max(0, total - self._module.driver_allocated_memory())

    @property
    def float64(self) -> bool:
        """False: the device does not support float64."""
        return False

    def rng_state(self) -> Tensor:
        """Return the state of the device's random number generator, uint8 on the host."""
        return self._module.get_rng_state()  # takes no device: there is only one

    def set_rng_state(self, state: Tensor) -> None:
        """Restore a state that `rng_state` returned."""
        self._module.set_rng_state(state)


class DirectML(Accelerator):
    """Any GPU under Windows and WSL, through the package torch-directml."""

    kind = "directml"

    @property
    def fused_adam(self) -> bool:
        """False: the registered kernel copies all tensors to the CPU and back."""
        return False

    @property
    def float64(self) -> bool:
        """False: the device does not support float64."""
        return False


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the capabilities of a device.

    Args:
        device: device of any kind, present on this machine or not.
    """
    return _kinds().get(device.type, Accelerator)(device)


def available_devices() -> list[str]:
    """Return the names of all devices that torch supports natively here, in order of choice."""
    return [name for kind in _kinds().values() for name in kind.names()]


def _kinds() -> dict[str, type[Accelerator]]:
    """Return the kinds of accelerators by `device.type`, in order of choice."""
    return {
        "cuda": Rocm if torch.version.hip else Cuda,
        "xpu": Xpu,
        "mps": Mps,
        "cpu": Cpu,
        # Default name of an out-of-tree backend, which torch-directml keeps.
        "privateuseone": DirectML,
    }
