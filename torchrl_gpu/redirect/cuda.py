"""Functions of `torch.cuda` that describe and operate another device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.redirect.streams import Event, Stream

_STREAM = Stream()

# Functions with the same result for every target, the only device.
_CONSTANT: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "init": None,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "get_device_capability": (0, 0),  # below that of any CUDA device
    "stream": _STREAM,
    "set_stream": None,
    "current_stream": _STREAM,
    "default_stream": _STREAM,
    "is_current_stream_capturing": False,
}

# Functions of torch's module for the target, with the result for a target that lacks them.
_OF_TARGET: dict[str, Any] = {
    "empty_cache": None,
    "ipc_collect": None,
    "max_memory_allocated": 0,
    "max_memory_cached": 0,
    "max_memory_reserved": 0,
    "memory_cached": 0,
    "memory_reserved": 0,
    "reset_accumulated_memory_stats": None,
    "reset_max_memory_allocated": None,
    "reset_max_memory_cached": None,
    "reset_peak_memory_stats": None,
    "synchronize": None,
}


class DeviceProperties(NamedTuple):
    """Result of `torch.cuda.get_device_properties`.

    Attributes:
        name: name of the hardware.
        total_memory: memory in bytes; 0 if torch does not report it.
        major: major number of the CUDA capability, below that of any CUDA device.
        minor: minor number of the CUDA capability.
        multi_processor_count: number of the host's cores.
        gcnArchName: empty; torch.compile reads it.
    """

    name: str
    total_memory: int
    major: int = 0
    minor: int = 0
    multi_processor_count: int = os.cpu_count() or 1
    gcnArchName: str = ""  # noqa: N815


class DeviceContext:
    """Replaces `torch.cuda.device` and `torch.cuda.device_of`: there is only one device to choose.

    Args:
        device: device of `torch.cuda.device`.
        obj: tensor of `torch.cuda.device_of`.
    """

    def __init__(self, device: Any = None, obj: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""


_CLASSES: dict[str, Callable[..., Any]] = {
    "device": DeviceContext,
    "device_of": DeviceContext,
    "Event": Event,
    "Stream": Stream,
}


class CudaFunctions:
    """Replaces functions of `torch.cuda`, with `target` as the only device.

    Public methods have the names and the arguments of functions of `torch.cuda`.

    Args:
        target: device of any type but cuda.
    """

    def __init__(self, target: torch.device) -> None:
        self._target = target
        self._accelerator = accelerator_of(target)

    def table(self) -> dict[str, Callable[..., Any]]:
        """Return all functions by their names in `torch.cuda`."""
        methods = {
            name: getattr(self, name)
            for name in vars(CudaFunctions)
            if not name.startswith("_") and name != "table"
        }
        constant = {name: _returning(result) for name, result in _CONSTANT.items()}
        of_target = {name: self._calling(name) for name in _OF_TARGET}
        return {**methods, **constant, **of_target, **_CLASSES}

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of the hardware."""
        return self._accelerator.name

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """Return name and memory of the target."""
        return DeviceProperties(self._accelerator.name, self._accelerator.total_memory or 0)

    def get_arch_list(self) -> list[str]:
        """Return an empty list: the target has no CUDA architecture."""
        return []

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Return whether autocast supports bfloat16 on the target."""
        return torch.bfloat16 in self._accelerator.autocast_dtypes

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes that tensors take; 0 if torch does not count them."""
        of_mps = self._accelerator.call("current_allocated_memory", default=0)
        return int(self._accelerator.call("memory_allocated", default=of_mps))

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """Return the statistics of the target's allocator; empty if torch keeps none."""
        stats: dict[str, Any] = self._accelerator.call("memory_stats", default={})
        return stats

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total memory in bytes; 0 if torch does not report them."""
        return self._accelerator.free_memory or 0, self._accelerator.total_memory or 0

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """Return a line with the memory that tensors take."""
        return f"{self._target}: {self.memory_allocated()} bytes allocated"

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Limit the memory of this process, if torch can on the target."""
        self._accelerator.limit_memory(fraction)

    def manual_seed(self, seed: int) -> None:
        """Seed the generator of the target; that of the host if the target has none."""
        if self._accelerator.has_generator:
            self._accelerator.call("manual_seed", seed)
        else:
            torch.default_generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def seed(self) -> None:
        """Seed the generator of the target with a random number."""
        self.manual_seed(int(torch.Generator().seed()))

    seed_all = seed

    def initial_seed(self) -> int:
        """Return the seed of the target's generator; the host's if torch does not report it."""
        of_host = torch.default_generator.initial_seed()
        return int(self._accelerator.call("initial_seed", default=of_host))

    def get_rng_state(self, device: Any = "cuda") -> Tensor:
        """Return the state of the generator that `manual_seed` seeds, uint8 on the host."""
        if not self._accelerator.has_generator:
            return torch.get_rng_state()
        state: Tensor = self._accelerator.call("get_rng_state")
        return state

    def get_rng_state_all(self) -> list[Tensor]:
        """Return the state of the generator of the only device."""
        return [self.get_rng_state()]

    def set_rng_state(self, new_state: Tensor, device: Any = "cuda") -> None:
        """Restore a state of `get_rng_state`."""
        if self._accelerator.has_generator:
            self._accelerator.call("set_rng_state", new_state)
        else:
            torch.set_rng_state(new_state)

    def set_rng_state_all(self, new_states: Iterable[Tensor]) -> None:
        """Restore a state of `get_rng_state_all`."""
        for state in new_states:
            self.set_rng_state(state)

    def _calling(self, name: str) -> Callable[..., Any]:
        def call(device: Any = None) -> Any:
            return self._accelerator.call(name, default=_OF_TARGET[name])

        return call


def _returning(result: Any) -> Callable[..., Any]:
    def constant(*args: Any, **kwargs: Any) -> Any:
        return result

    return constant
