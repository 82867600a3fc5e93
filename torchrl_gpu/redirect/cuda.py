"""Functions of `torch.cuda` that describe and operate another device."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.redirect.streams import Event, Stream

# Functions that take no argument or a device, with the result for a device that lacks them.
_DEFAULTS: dict[str, Any] = {
    "empty_cache": None,
    "ipc_collect": None,
    "max_memory_allocated": 0,
    "max_memory_cached": 0,
    "max_memory_reserved": 0,
    "memory_cached": 0,
    "memory_reserved": 0,
    "memory_stats": {},
    "reset_accumulated_memory_stats": None,
    "reset_max_memory_allocated": None,
    "reset_max_memory_cached": None,
    "reset_peak_memory_stats": None,
    "synchronize": None,
}


@dataclass(frozen=True)
class DeviceProperties:
    """Result of `torch.cuda.get_device_properties`.

    Args:
        name: name of the hardware.
        total_memory: memory in bytes; 0 where torch does not report it.
        major: major number of the CUDA capability: 0, below that of any CUDA device.
        minor: minor number of the CUDA capability: 0.
        multi_processor_count: number of the host's cores.
        gcnArchName: empty; torch.compile reads it.
    """

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    gcnArchName: str = ""  # noqa: N815


class NoContext:
    """Stands for `torch.cuda.device` and `torch.cuda.device_of`: there is one device to choose."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""


class CudaFunctions:
    """Stands for `torch.cuda`, with `target` as its only device.

    Public methods have the names and the arguments of functions of `torch.cuda`. They use the
    module of torch for the target, such as `torch.xpu`, where it has the function.

    Args:
        target: device of any type but cuda.
    """

    def __init__(self, target: torch.device) -> None:
        self._target = target
        self._accelerator = accelerator_of(target)
        self._module = getattr(torch, target.type, None)

    def table(self) -> dict[str, Callable[..., Any]]:
        """Return all functions by their names in `torch.cuda`."""
        methods = {
            name: getattr(self, name)
            for name in vars(CudaFunctions)
            if not name.startswith("_") and name != "table"
        }
        forwarded = {name: self._forwarded(name) for name in _DEFAULTS}
        classes = {"device": NoContext, "device_of": NoContext, "Event": Event, "Stream": Stream}
        return {**methods, **forwarded, **classes}

    def is_available(self) -> bool:
        """Return True."""
        return True

    def is_initialized(self) -> bool:
        """Return True."""
        return True

    def init(self) -> None:
        """Do nothing: torch initialises the device at its first use."""

    def device_count(self) -> int:
        """Return 1: every CUDA index is the target."""
        return 1

    def current_device(self) -> int:
        """Return 0, the index of the only device."""
        return 0

    def set_device(self, device: Any) -> None:
        """Do nothing: there is one device to choose."""

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of the hardware."""
        return self._accelerator.name

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """Return name and memory of the target."""
        total = self._accelerator.total_memory or 0
        return DeviceProperties(self._accelerator.name, total, 0, 0, os.cpu_count() or 1)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return (0, 0), below the capability of any CUDA device."""
        return (0, 0)

    def get_arch_list(self) -> list[str]:
        """Return no CUDA architecture."""
        return []

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Return whether autocast supports bfloat16 on the target."""
        return torch.bfloat16 in self._accelerator.autocast_dtypes

    def stream(self, stream: Any = None) -> Stream:
        """Return a context that changes nothing."""
        return Stream()

    def set_stream(self, stream: Any) -> None:
        """Do nothing: work runs in the order of the calls."""

    def current_stream(self, device: Any = None) -> Stream:
        """Return the stream of the target."""
        return Stream()

    def default_stream(self, device: Any = None) -> Stream:
        """Return the stream of the target."""
        return Stream()

    def is_current_stream_capturing(self) -> bool:
        """Return False: no work of the target is captured in a CUDA graph."""
        return False

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes that tensors take; 0 where torch does not count them."""
        name = "memory_allocated"
        if not hasattr(self._module, name):
            name = "current_allocated_memory"  # of torch.mps
        return int(self._call(name, 0))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total memory in bytes; 0 where torch does not report them."""
        return self._accelerator.free_memory or 0, self._accelerator.total_memory or 0

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """Return a line with the memory that tensors take."""
        return f"{self._target}: {self.memory_allocated()} bytes allocated"

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Limit the memory of this process, where torch can on the target."""
        self._call("set_per_process_memory_fraction", None, fraction)

    def manual_seed(self, seed: int) -> None:
        """Seed the generator of the target: the host's where it has none of its own."""
        if hasattr(self._module, "manual_seed"):
            self._call("manual_seed", None, seed)
        else:
            torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generator of the target."""
        self.manual_seed(seed)

    def seed(self) -> None:
        """Seed the generator of the target with a random number."""
        self.manual_seed(int(torch.Generator().seed()))

    def seed_all(self) -> None:
        """Seed the generator of the target with a random number."""
        self.seed()

    def initial_seed(self) -> int:
        """Return the seed of the target's generator; the host's where torch does not report it."""
        return int(self._call("initial_seed", torch.default_generator.initial_seed()))

    def get_rng_state(self, device: Any = "cuda") -> Tensor:
        """Return the state of the generator that `manual_seed` seeds, uint8 on the host."""
        own = self._accelerator.has_generator
        return self._accelerator.rng_state() if own else torch.get_rng_state()

    def get_rng_state_all(self) -> list[Tensor]:
        """Return the state of the generator of the only device."""
        return [self.get_rng_state()]

    def set_rng_state(self, new_state: Tensor, device: Any = "cuda") -> None:
        """Restore a state of `get_rng_state`."""
        if self._accelerator.has_generator:
            self._accelerator.set_rng_state(new_state)
        else:
            torch.set_rng_state(new_state)

    def set_rng_state_all(self, new_states: Iterable[Tensor]) -> None:
        """Restore a state of `get_rng_state_all`."""
        for state in new_states:
            self.set_rng_state(state)

    def _forwarded(self, name: str) -> Callable[..., Any]:
        def forwarded(device: Any = None) -> Any:
            return self._call(name, _DEFAULTS[name])

        return forwarded

    def _call(self, name: str, default: Any, *arguments: Any) -> Any:
        """Call a function of the target's module; return the default where there is none."""
        function = getattr(self._module, name, None)
        if function is None:
            return default
        takes_device = "device" in inspect.signature(function).parameters
        return function(*arguments, **({"device": self._target} if takes_device else {}))
