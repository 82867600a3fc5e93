"""Functions of `torch.cuda` that describe and operate another device."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.redirect.streams import Event, Stream

_STREAM: Final = Stream()

# Functions with the same result for every target, the only device.
_CONSTANT: Final[dict[str, Any]] = {
    "is_available": True,
    "is_initialized": True,
    "init": None,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "stream": _STREAM,
    "set_stream": None,
    "current_stream": _STREAM,
    "default_stream": _STREAM,
    "is_current_stream_capturing": False,
}

# Functions of torch's module for the target, which do nothing for a target that lacks them.
_OF_TARGET: Final = (
    *("empty_cache", "ipc_collect", "synchronize"),
    *("reset_accumulated_memory_stats", "reset_peak_memory_stats"),
)


class DeviceProperties(NamedTuple):
    """Result of `torch.cuda.get_device_properties`."""

    name: str
    total_memory: int  # in bytes; 0 if torch does not report it
    major: int = 0  # of the CUDA capability, below that of any CUDA device
    minor: int = 0
    multi_processor_count: int = os.cpu_count() or 1
    gcnArchName: str = ""  # noqa: N815  # torch.compile reads it


class DeviceContext(nullcontext[None]):
    """Replaces `torch.cuda.device` and `device_of`: there is only one device to choose."""

    def __init__(self, device: Any = None, obj: Any = None) -> None:
        super().__init__()
        self.idx = 0


def cuda_functions(target: torch.device) -> dict[str, Callable[..., Any]]:
    """Return replacements for functions of `torch.cuda` by name; `target` is the only device.

    Other functions of torch, such as `get_device_name` and `memory_allocated`, call these.
    """
    accelerator = accelerator_of(target)
    call, host = accelerator.call, torch.default_generator
    set_seed: Callable[[int], Any] = host.manual_seed
    get_state: Callable[[], Tensor] = host.get_state
    set_state: Callable[[Tensor], Any] = host.set_state
    if accelerator.has_generator:
        set_seed, get_state, set_state = (
            partial(call, name) for name in ("manual_seed", "get_rng_state", "set_rng_state")
        )

    def memory_stats() -> dict[str, int]:
        of_mps = call("current_allocated_memory", default=0)
        return call("memory_stats", default={"allocated_bytes.all.current": of_mps})

    # Results that do not depend on the arguments, which only choose a device or a format.
    results: dict[str, Callable[[], Any]] = {
        **{name: partial(_CONSTANT.get, name) for name in _CONSTANT},
        **{name: partial(call, name) for name in _OF_TARGET},
        "get_arch_list": list,
        "get_device_properties": lambda: DeviceProperties(
            accelerator.name, accelerator.total_memory or 0
        ),
        "get_rng_state": get_state,
        "initial_seed": lambda: int(call("initial_seed", default=host.initial_seed())),
        "is_bf16_supported": lambda: torch.bfloat16 in accelerator.autocast_dtypes,
        "mem_get_info": lambda: (accelerator.free_memory or 0, accelerator.total_memory or 0),
        "memory_stats": memory_stats,
        "memory_summary": lambda: f"{target}: {torch.cuda.memory_allocated()} bytes allocated",
        "seed": lambda: set_seed(int(torch.Generator().seed())),
        "seed_all": lambda: set_seed(int(torch.Generator().seed())),
    }
    return {
        **{name: _for_any_arguments(result) for name, result in results.items()},
        "device": DeviceContext,
        "device_of": DeviceContext,
        "Event": Event,
        "manual_seed": lambda seed: set_seed(seed),
        "manual_seed_all": lambda seed: set_seed(seed),
        "set_per_process_memory_fraction": lambda fraction, device=None: accelerator.limit_memory(
            fraction
        ),
        "set_rng_state": lambda new_state, device=None: set_state(new_state),
        "Stream": Stream,
    }


def _for_any_arguments(result: Callable[[], Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return result()

    return function
