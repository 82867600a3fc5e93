"""The record of a device: everything that differs from one kind of accelerator to another.

Torch is asked wherever torch can tell. A kind of device states the rest, in one class below and one
entry of the table at the end; no other module asks for the type of a device.
"""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict

import psutil
import torch
from torch import Tensor
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _get_fused_kernels_supported_devices,
)


class AdamOptions(TypedDict):
    """Flags of `torch.optim.Adam`, None where torch chooses."""

    fused: bool | None
    foreach: bool | None
    capturable: bool


class Event(Protocol):
    """A mark in a stream of work, as `torch.cuda.Event` is one."""

    def record(self, stream: Any) -> None:
        """Set the mark behind all work that the stream was given so far."""

    def synchronize(self) -> None:
        """Wait until the work before the mark is done."""


@dataclass(frozen=True)
class Accelerator:
    """Capabilities of a device of any kind, the CPU included.

    This class serves every device that torch has and no class below is for. Properties that need
    the hardware (name, memory, float64, autocast_dtypes, compile) ask it each time they are read;
    the others can be read for a device that this machine does not have.

    Args:
        device: as tensors have it.

    Attributes:
        kind: cpu, cuda, rocm, xpu, mps, directml or other.
        pinned_transfers: whether the device reads pinned memory of the host on its own, so that
            the host need not wait for a copy.
    """

    device: torch.device

    kind: ClassVar[str] = "other"
    pinned_transfers: ClassVar[bool] = False

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all devices of this kind here; none where they cannot be counted."""
        return []

    @property
    def name(self) -> str:
        """The name of the hardware, or that of the device where torch does not tell."""
        properties = self._ask("get_device_properties", self.device)
        return str(getattr(properties, "name", self.device))

    @property
    def total_memory(self) -> int | None:
        """Memory of the device in bytes; None where torch does not tell."""
        properties = self._ask("get_device_properties", self.device)
        return getattr(properties, "total_memory", None)

    @property
    def free_memory(self) -> int | None:
        """Memory in bytes that nobody uses at the moment; None where torch does not tell."""
        free_and_total = self._ask("mem_get_info", self.device)
        return None if free_and_total is None else int(free_and_total[0])

    @property
    def fused_adam(self) -> bool:
        """Whether one kernel does a whole step of Adam."""
        return self.device.type in _get_fused_kernels_supported_devices() and (
            # Torch lists the one backend from outside of it whether it brought a kernel or not.
            not self._is_from_outside_torch
            or torch._C._dispatch_has_kernel_for_dispatch_key(
                "aten::_fused_adam_.tensor_lr", "PrivateUse1"
            )
        )

    @property
    def foreach_adam(self) -> bool:
        """Whether operations over a list of tensors save time, says torch."""
        return self.device.type in _get_foreach_kernels_supported_devices()

    @property
    def capturable(self) -> bool:
        """Whether an optimizer can keep all of its state on the device and read nothing back."""
        return self.device.type in _get_capturable_supported_devices()

    @property
    def adam_options(self) -> AdamOptions:
        """The flags of the fastest Adam that takes a learning rate as a tensor on the device."""
        capturable = self.capturable
        if self.fused_adam:
            return {"fused": True, "foreach": None, "capturable": capturable}
        # Torch refuses lists of tensors with such a learning rate unless they are capturable.
        foreach = True if self.foreach_adam and capturable else None
        return {"fused": None, "foreach": foreach, "capturable": capturable}

    @property
    def float64(self) -> bool:
        """Whether there are tensors of float64."""
        return True

    @property
    def autocast_dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes that `torch.autocast` computes in here, the one to prefer first."""
        return tuple(dtype for dtype in (torch.bfloat16, torch.float16) if self._autocasts(dtype))

    @property
    def graphs(self) -> bool:
        """Whether torch can capture work of the device as a graph and replay it."""
        return getattr(self._module, "graph", None) is not None

    @property
    def compile(self) -> bool:
        """Whether `torch.compile` generates code for the device; imports the compiler."""
        return bool(
            importlib.import_module("torch._dynamo.utils").is_compile_supported(self.device.type)
        )

    @property
    def has_generator(self) -> bool:
        """Whether the device draws from a generator of its own, whose state can be read."""
        return getattr(self._module, "get_rng_state", None) is not None

    def rng_state(self) -> Tensor:
        """Return the state of the device's generator, uint8 on the host."""
        return self._module.get_rng_state(self.device)

    def set_rng_state(self, state: Tensor) -> None:
        """Restore the return value of `rng_state`."""
        self._module.set_rng_state(state, self.device)

    def event(self) -> Event:
        """Return a new event; for kinds with pinned transfers."""
        return self._module.Event()

    def current_stream(self) -> Any:
        """Return the stream that this device works on; for kinds with pinned transfers."""
        return self._module.current_stream(self.device)

    @property
    def _module(self) -> Any:
        """Torch's module for the type of the device, as `torch.cuda`; None without one."""
        return getattr(torch, self.device.type, None)

    @property
    def _is_from_outside_torch(self) -> bool:
        return self.device.type == torch._C._get_privateuse1_backend_name()

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return the answer of a function of the module; None where this torch has no such one."""
        function_or_none = getattr(self._module, function, None)
        return None if function_or_none is None else function_or_none(*arguments)

    def _autocasts(self, dtype: torch.dtype) -> bool:
        """Try whether autocast takes a dtype: it refuses by a warning or an error."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.autocast(self.device.type, dtype):
                    return torch.is_autocast_enabled(self.device.type)
            except (AssertionError, RuntimeError):
                return False


class Cpu(Accelerator):
    """The host itself."""

    kind = "cpu"

    @classmethod
    def names(cls) -> list[str]:
        """Return the one name."""
        return ["cpu"]

    @property
    def name(self) -> str:
        """The number of cores."""
        return f"cpu, {os.cpu_count()} cores"

    @property
    def total_memory(self) -> int:
        """Memory of the machine in bytes."""
        return int(psutil.virtual_memory().total)

    @property
    def free_memory(self) -> int:
        """Memory in bytes that programs can have without swapping."""
        return int(psutil.virtual_memory().available)

    @property
    def compile(self) -> bool:
        """Whether there is a C++ compiler for the generated code."""
        builder = importlib.import_module("torch._inductor.cpp_builder")
        try:
            builder.get_cpp_compiler()
        except RuntimeError:
            return False
        return super().compile

    @property
    def has_generator(self) -> bool:
        """False: the generator of the host is no generator of an accelerator's own."""
        return False


class Cuda(Accelerator):
    """NVIDIA."""

    kind = "cuda"
    pinned_transfers = True

    @classmethod
    def names(cls) -> list[str]:
        """Return one name for each GPU."""
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


class Rocm(Cuda):
    """AMD: torch calls these devices cuda too."""

    kind = "rocm"


class Xpu(Accelerator):
    """Intel."""

    kind = "xpu"
    pinned_transfers = True

    @classmethod
    def names(cls) -> list[str]:
        """Return one name for each GPU."""
        return [f"xpu:{index}" for index in range(torch.xpu.device_count())]

    @property
    def free_memory(self) -> int | None:
        """Memory in bytes that nobody uses at the moment; None where the driver does not tell."""
        try:
            return super().free_memory
        except RuntimeError:
            return None

    @property
    def float64(self) -> bool:
        """Whether the hardware has it: many of Intel's GPUs do not."""
        return bool(torch.xpu.get_device_properties(self.device).has_fp64)


class Mps(Accelerator):
    """Apple."""

    kind = "mps"

    @classmethod
    def names(cls) -> list[str]:
        """Return the one name, if there is such a GPU."""
        return ["mps:0"] if torch.backends.mps.is_available() else []

    @property
    def total_memory(self) -> int | None:
        """The share of the machine's memory in bytes that the GPU can use well."""
        return self._ask("recommended_max_memory")

    @property
    def free_memory(self) -> int | None:
        """The rest of that share which this process does not use, in bytes."""
        total = self.total_memory
        return None if total is None else max(0, total - self._module.driver_allocated_memory())

    @property
    def float64(self) -> bool:
        """False."""
        return False

    def rng_state(self) -> Tensor:
        """Return the state of the generator, uint8 on the host."""
        return self._module.get_rng_state()  # there is one device, and no argument for it

    def set_rng_state(self, state: Tensor) -> None:
        """Restore the return value of `rng_state`."""
        self._module.set_rng_state(state)


class DirectML(Accelerator):
    """Any GPU under Windows and WSL, by the package torch-directml."""

    kind = "directml"

    @property
    def fused_adam(self) -> bool:
        """False: the kernel that is registered copies everything to the CPU and back."""
        return False

    @property
    def float64(self) -> bool:
        """False."""
        return False


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the record of a device.

    Args:
        device: of any kind; it need not be there.
    """
    return _kinds().get(device.type, Accelerator)(device)


def available_devices() -> list[str]:
    """Return the names of the devices that torch has here by itself, the best first."""
    return [name for kind in _kinds().values() for name in kind.names()]


def _kinds() -> dict[str, type[Accelerator]]:
    """Return the kinds by the type of device that they appear as, in order of choice."""
    return {
        "cuda": Rocm if torch.version.hip else Cuda,
        "xpu": Xpu,
        "mps": Mps,
        "cpu": Cpu,
        # The name of a backend from outside torch that gave itself none.
        "privateuseone": DirectML,
    }
