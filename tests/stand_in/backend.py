"""Make torch know the stand-in accelerator as a device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import backend_registration

from tests.stand_in.tensor import DEVICE_TYPE, execute
from tests.stand_in.traffic import record

_REGISTER = "_setup_privateuseone_for_python_backend"

# `arange` and `eye` would be composed of others by changing a shape, which a wrapper cannot do;
# `_copy_from` is called from C++, as by `torch.tensor(..., device=...)`.
_NOT_BY_FALLBACK = (
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
    torch.ops.aten.eye.default,
    torch.ops.aten.eye.m,
    torch.ops.aten._copy_from.default,
)


def missing() -> str | None:
    """Return why there can be no stand-in accelerator here, None where there can."""
    if hasattr(backend_registration, _REGISTER):
        return None
    return f"torch {torch.__version__} cannot have a device written in Python"


@contextmanager
def stand_in_accelerator() -> Iterator[torch.device]:
    """Offer the device within the block.

    Its registration outlasts the block, because torch cannot undo it; by then it says that it is
    not available. The two settings that it needs are restored: modules move to it by swapping
    tensors, and gradients are computed in the calling thread, as torch starts threads for the
    devices only that it knew at the first backward pass.
    """
    backend = _registered_backend()
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    backend.available = True
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield torch.device(DEVICE_TYPE, 0)
    finally:
        backend.available = False
        torch.__future__.set_swap_module_params_on_conversion(swapped)


class _Backend:
    """What torch expects under `torch.npu`: one device that shares the CPU's random numbers."""

    def __init__(self) -> None:
        self.available = False
        self.libraries: list[torch.library.Library] = []

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        record("synchronize", "synchronize")

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False


@functools.cache
def _registered_backend() -> _Backend:
    """Register the device once for the life of the process."""
    backend = _Backend()
    getattr(backend_registration, _REGISTER)(rename=DEVICE_TYPE, backend_module=backend)
    # What has a StandInTensor among its arguments arrives by __torch_dispatch__; this is the rest.
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(_execute, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for operation in _NOT_BY_FALLBACK:
        aten.impl(operation, functools.partial(_execute, operation), "PrivateUse1")
    backend.libraries = [anything, aten]  # a registration lives as long as its library
    return backend


def _execute(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return execute(operation, args, kwargs)
