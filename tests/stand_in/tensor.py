"""Tensor of the stand-in accelerator: a CPU tensor that reports another device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.stand_in.abilities import DEVICE_TYPE, HARDWARE
from tests.stand_in.graphs import current_capture
from tests.stand_in.pinned import begin_copy
from tests.stand_in.traffic import record

_READS_A_VALUE = {"_local_scalar_dense", "allclose", "equal", "is_nonzero"}
# The CUDA kernels of these operations read the size of their result on the host.
_SHAPE_DEPENDS_ON_VALUES = {
    "_unique",
    "_unique2",
    "argwhere",
    "bincount",
    "histc",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
_COPYING = {"copy_", "copy", "_copy_from"}
_DOUBLE = (torch.float64, torch.complex128)


class StandInTensor(Tensor):
    """Wraps a CPU tensor with the values, and reports the accelerator as its device."""

    _held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> StandInTensor:
        if held.dtype in _DOUBLE and not HARDWARE.abilities.float64:
            raise TypeError(f"cannot convert a tensor to {held.dtype} on {DEVICE_TYPE}:0")
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(DEVICE_TYPE, 0),
        )
        wrapper._held = held
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        operation: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return execute(operation, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        record("read", "repr")
        return f"StandInTensor({self._held!r})"

    def tolist(self) -> Any:
        record("read", "tolist")
        return self._held.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"cannot convert a tensor on {self.device} to NumPy; copy it to the CPU")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()


def execute(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one torch operation on the wrapped CPU tensors, and count its host reads and copies."""
    name = _name_of(operation)
    if name in _COPYING:
        return _copy(name, args, kwargs)
    abilities = HARDWARE.abilities
    if (
        (name.startswith("_fused_adam") and not abilities.fused_adam)
        or ("lerp" in name and not abilities.lerp)
        or (name == "searchsorted" and not abilities.searchsorted)
        or (operation is torch.ops.aten.view.dtype and not abilities.byte_views)
    ):
        raise NotImplementedError(f"{DEVICE_TYPE} has no kernel for {name}")
    if reads_host(name, args, kwargs):
        record("read", name)

    tensors: list[Tensor] = []

    def unwrap(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return _unwrap(tensor)

    given, device = args, kwargs.get("device")
    args, kwargs = _each_tensor(unwrap, args), _each_tensor(unwrap, kwargs)
    gives_stand_in = device is None or torch.device(device).type == DEVICE_TYPE
    if device is not None:
        if name == "_to_copy":
            _record_copy(to_device=gives_stand_in, from_device=_is_stand_in(given[0]), name=name)
        kwargs = {**kwargs, "device": "cpu" if gives_stand_in else device}
        kwargs.pop("pin_memory", None)
    elif name in _INDEXING:
        for index in given[1]:
            if isinstance(index, Tensor) and index.ndim > 0 and not _is_stand_in(index):
                record("copy to device", name)
    else:
        _refuse_mixed_devices(name, tensors)

    held = {id(tensor._held): tensor for tensor in tensors if isinstance(tensor, StandInTensor)}
    graph = current_capture()
    if graph is not None:
        graph.note_writes(operation, args, kwargs)
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        result = operation(*args, **kwargs)
    elif kwargs.get("generator") is not None:
        raise RuntimeError(f"{name}: expected a generator of {DEVICE_TYPE}, but found one of cpu")
    else:
        with HARDWARE.draws():
            result = operation(*args, **kwargs)
    if graph is not None:
        graph.add(operation, args, kwargs, result)

    def wrap(tensor: Tensor) -> Tensor:
        changed_in_place = held.get(id(tensor))
        if changed_in_place is None:
            return StandInTensor(tensor)
        if changed_in_place.shape != tensor.shape or changed_in_place.stride() != tensor.stride():
            raise NotImplementedError(f"the stand-in accelerator cannot change a shape by {name}")
        return changed_in_place

    return _each_tensor(wrap, result) if gives_stand_in else result


@cache
def _name_of(operation: OpOverload) -> str:
    return operation._schema.name.removeprefix("aten::")


def reads_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation, named without `aten::`, would block the host on a CUDA device."""
    if name in _READS_A_VALUE or name in _SHAPE_DEPENDS_ON_VALUES:
        return True
    if name == "repeat_interleave":
        return isinstance(args[-1], Tensor) and kwargs.get("output_size") is None
    if name == "normal":  # checks that no standard deviation is negative
        return len(args) > 1 and isinstance(args[1], Tensor)
    if name == "multinomial":  # checks the probabilities, except when drawing many with replacement
        replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
        return args[1] == 1 or not replacement
    if name in _INDEXING:
        is_masked = any(_is_mask(index) for index in args[1])
        fills_by_scalar = len(args) > 2 and args[2].ndim == 0  # becomes masked_fill
        return is_masked and not fills_by_scalar
    return False


def _copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    destination, source = args[:2] if name != "_copy_from" else (args[1], args[0])
    _record_copy(_is_stand_in(destination), _is_stand_in(source), name)
    if args[2] if len(args) > 2 else kwargs.get("non_blocking", False):
        begin_copy(source)
    to, values = _unwrap(destination), _unwrap(source)
    graph = current_capture()
    if name == "copy":
        copied = torch.ops.aten.copy(to, values)
        if graph is not None:
            graph.add(torch.ops.aten.copy.default, (to, values), {}, copied)
        return StandInTensor(copied)
    if graph is not None:
        graph.note_writes(torch.ops.aten.copy_.default, (to, values), {})
    to.copy_(values)
    if graph is not None:
        graph.add(torch.ops.aten.copy_.default, (to, values), {}, to)
    return destination


def _record_copy(to_device: bool, from_device: bool, name: str) -> None:
    if to_device and not from_device:
        record("copy to device", name)
    elif from_device and not to_device:
        record("copy to host", name)


def _refuse_mixed_devices(name: str, tensors: list[Tensor]) -> None:
    on_device = [tensor for tensor in tensors if _is_stand_in(tensor)]
    on_host = [tensor for tensor in tensors if not _is_stand_in(tensor) and tensor.ndim > 0]
    if on_device and on_host:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, "
            f"but found {DEVICE_TYPE}:0 and {on_host[0].device}"
        )


def _is_stand_in(value: object) -> bool:
    return isinstance(value, StandInTensor)


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _each_tensor(function: Callable[[Tensor], Any], values: Any) -> Any:
    """Replace every tensor of nested values by a result; many times faster than torch's pytree."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, (list, tuple)):
        return type(values)([_each_tensor(function, value) for value in values])
    if isinstance(values, dict):
        return {name: _each_tensor(function, value) for name, value in values.items()}
    return values


def _unwrap(value: Any) -> Any:
    return value._held if isinstance(value, StandInTensor) else value
