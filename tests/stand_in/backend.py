"""Registration of the stand-in accelerator as a torch device."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import backend_registration

from tests.stand_in import graphs
from tests.stand_in.abilities import DEVICE_TYPE, HARDWARE, Abilities
from tests.stand_in.pinned import Event, PinnedMemory, current_stream
from tests.stand_in.tensor import execute
from tests.stand_in.traffic import record
from torchrl_gpu.devices import kinds

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
    if torch.cuda.is_available():
        return "torch has one accelerator per process, a GPU here; CUDA_VISIBLE_DEVICES= hides it"
    if hasattr(backend_registration, _REGISTER):
        return None
    return f"torch {torch.__version__} cannot have a device written in Python"


@contextmanager
def stand_in_accelerator(abilities: Abilities | None = None) -> Iterator[torch.device]:
    """Make the device available within the block, by `device=npu` also on the command line.

    Torch cannot undo the registration of a device, so after the block the device remains registered
    but reports that it is not available. Two settings are changed within the block: modules move to
    the device by swapping tensors, and gradients are computed in the calling thread, because torch
    starts autograd threads only for devices that were registered before the first backward pass.

    Args:
        abilities: abilities of the device; None for those of `Abilities()`.
    """
    backend = _registered_backend()
    abilities = Abilities() if abilities is None else abilities
    with_device = (*kinds.KINDS, abilities.record())
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    HARDWARE.switch_on(abilities)
    try:
        with ExitStack() as block:
            block.enter_context(backend.equipped(abilities))
            block.enter_context(mock.patch.object(kinds, "KINDS", with_device))
            block.enter_context(torch.autograd.set_multithreading_enabled(False))
            if abilities.pinned_memory:
                block.enter_context(PinnedMemory())
            yield torch.device(DEVICE_TYPE, 0)
    finally:
        HARDWARE.switch_off()
        torch.__future__.set_swap_module_params_on_conversion(swapped)


class _Backend:
    """Module `torch.npu` as torch expects it: one device."""

    def __init__(self) -> None:
        self.libraries: list[torch.library.Library] = []

    @contextmanager
    def equipped(self, abilities: Abilities) -> Iterator[None]:
        """Have the functions that only devices with some ability have, within the block."""
        functions: dict[str, Any] = {}
        if abilities.generator:
            functions |= {"get_rng_state": _rng_state, "set_rng_state": _set_rng_state}
        if abilities.pinned_memory:
            functions |= {"Event": Event, "current_stream": current_stream}
        if abilities.graphs:
            functions |= graphs.functions()
        with mock.patch.multiple(self, create=True, **functions) if functions else nullcontext():
            yield

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return HARDWARE.is_present

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        record("synchronize", "synchronize")

    def manual_seed(self, seed: int) -> None:
        self.manual_seed_all(seed)

    def manual_seed_all(self, seed: int) -> None:
        if HARDWARE.abilities.generator:
            HARDWARE.seed(seed)

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


def _rng_state(device: object = None) -> Tensor:
    return HARDWARE.random_state.clone()


def _set_rng_state(state: Tensor, device: object = None) -> None:
    HARDWARE.random_state = state.clone()


def _execute(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return execute(operation, args, kwargs)
