"""Function mode that replaces CUDA devices in the arguments of torch functions."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchrl_gpu.devices.kinds import accelerator_of

_CUDA = re.compile(r"cuda(:\d+)?$")
_HOST = torch.device("cpu")


def names_cuda(device: Any) -> bool:
    """Return whether a value names a CUDA device, as `cuda`, `cuda:1` or a `torch.device` do."""
    if isinstance(device, str):
        return _CUDA.match(device) is not None
    return isinstance(device, torch.device) and device.type == "cuda"


class CudaRedirection(TorchFunctionMode):
    """Calls torch functions with `target` in place of CUDA devices in their arguments.

    Torch sends every function, method and attribute of a tensor through the modes of the calling
    thread, and the constructor of `torch.device` too, before it looks for the device.

    If the target is the CPU, two kinds of copies remain, because code for a GPU relies on them: a
    tensor whose memory belongs to NumPy is copied to the target, and `cpu()` and `to("cpu")` return
    a copy.

    Attributes:
        active: whether calls are changed. A thread can outlive the block that it was started in.
    """

    def __init__(self, target: torch.device) -> None:
        super().__init__()
        self.active = True
        self._target = target
        self._pins = accelerator_of(target).pinned_transfers
        self._special: dict[Any, Callable[..., Any]] = {
            Tensor.cuda: self._cuda,
            Tensor.is_cuda.__get__: self._is_cuda,  # type: ignore[attr-defined]
            Tensor.to: self._to,
            torch._C._nn._parse_to: self._parse_to,
            torch.device: self._device,
        }
        if not self._pins:
            self._special[Tensor.pin_memory] = lambda tensor, device=None: tensor
            self._special[Tensor.is_pinned] = lambda tensor, device=None: False
        if target == _HOST:
            self._special[Tensor.cpu] = _copied_to_host
            for function in (torch.as_tensor, torch.asarray):
                self._special[function] = functools.partial(self._as_tensor, function)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function with the target in place of CUDA devices."""
        if self.active:
            special = self._special.get(func)
            if special is not None:
                return special(*args, **kwargs or {})
            # This runs at every call: arguments are copied only if one of them may change.
            for argument in args:
                if type(argument) is str or type(argument) is torch.device:
                    args = tuple(self._target if names_cuda(a) else a for a in args)
                    break
            if kwargs:
                return func(*args, **self._redirected(kwargs))
        return func(*args, **kwargs or {})

    def _redirected(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        device = kwargs.get("device")
        if device is not None and _asks_for_cuda(device):
            kwargs = {**kwargs, "device": self._target}
        if not self._pins and kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return kwargs

    def _parse_to(self, *args: Any, **kwargs: Any) -> Any:
        if args and _asks_for_cuda(args[0]):
            args = (self._target, *args[1:])
        return torch._C._nn._parse_to(*args, **self._redirected(kwargs))

    def _cuda(
        self,
        tensor: Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Tensor:
        moved = tensor.to(self._target, non_blocking=non_blocking, memory_format=memory_format)
        return _own(moved) if self._target == _HOST else moved

    def _device(self, *args: Any, **kwargs: Any) -> torch.device:
        name = args[0] if args else kwargs.get("device", kwargs.get("type"))
        return self._target if _asks_for_cuda(name) else torch.device(*args, **kwargs)

    def _is_cuda(self, tensor: Tensor, owner: type[Tensor] | None = None) -> bool:
        return tensor.device.type == self._target.type

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        asked = args[0] if args else kwargs.get("device")
        if args and _asks_for_cuda(asked):
            args = (self._target, *args[1:])
        moved = tensor.to(*args, **self._redirected(kwargs))
        if moved is tensor and self._target == _HOST:
            if isinstance(asked, str) and asked == "cpu":
                return moved.clone()
            if isinstance(asked, (str, int, torch.device)):
                return _own(moved)
        return moved

    def _as_tensor(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        result = function(*args, **self._redirected(kwargs))
        return result if kwargs.get("device") is None else _own(result)


def _asks_for_cuda(device: Any) -> bool:
    """Return whether an argument for a device asks for CUDA: by name, or by an index alone."""
    return type(device) is int or names_cuda(device)


def _own(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor whose memory belongs to NumPy; any other tensor unchanged."""
    # Torch cannot resize memory that it did not allocate.
    is_foreign = tensor.layout is torch.strided and not tensor.untyped_storage().resizable()
    return tensor.clone() if is_foreign else tensor


def _copied_to_host(
    tensor: Tensor, memory_format: torch.memory_format = torch.preserve_format
) -> Tensor:
    copied = tensor.cpu(memory_format=memory_format)
    return copied.clone() if copied is tensor else copied
