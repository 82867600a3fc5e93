"""Registration of the stand-in accelerator as a torch device."""

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

# Operations that need their own registration. Torch composes `arange` and `eye` of operations that
# resize a tensor, which a wrapper cannot do; C++ code calls `_copy_from` directly, as in
# `torch.tensor(..., device=...)`.
_NOT_BY_FALLBACK = (
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
    torch.ops.aten.eye.default,
    torch.ops.aten.eye.m,
    torch.ops.aten._copy_from.default,
)


def missing() -> str | None:
    """Return the reason why this torch cannot have a stand-in accelerator; None if it can."""
    if hasattr(backend_registration, _REGISTER):
        return None
    return f"torch {torch.__version__} cannot have a device written in Python"


@contextmanager
def stand_in_accelerator() -> Iterator[torch.device]:
    """Make the device available within the block.

    Torch cannot undo the registration of a device, so after the block the device remains registered
    but reports that it is not available. Two settings are changed within the block: modules move to
    the device by swapping tensors, and gradients are computed in the calling thread, because torch
    starts autograd threads only for devices that were registered before the first backward pass.
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
    """Module `torch.npu` as torch expects it: one device, with the CPU's random generator."""

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
    """Register the device, once per process."""
    backend = _Backend()
    getattr(backend_registration, _REGISTER)(rename=DEVICE_TYPE, backend_module=backend)
    # Operations with a StandInTensor argument use __torch_dispatch__; these are all others.
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(_execute, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for operation in _NOT_BY_FALLBACK:
        aten.impl(operation, functools.partial(_execute, operation), "PrivateUse1")
    backend.libraries = [anything, aten]  # deleting a library removes its registrations
    return backend


def _execute(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return execute(operation, args, kwargs)
