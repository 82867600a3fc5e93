"""Replacements for the parts of torch that no function mode reaches."""

import functools
import importlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.redirect.cuda import cuda_functions
from torchrl_gpu.redirect.mode import CudaRedirection, names_cuda

_CUDA_MODULES = ("torch.cuda", "torch.cuda.memory", "torch.cuda.random")

# Torch switches a mode off while it handles a call. The backward pass is a call, and it runs hooks,
# checkpointed modules and functions of the user.
_ENGINE = "_engine_run_backward"

Patch = tuple[Any, str, Any]


def patches(target: torch.device, mode: CudaRedirection) -> list[Patch]:
    """Return all replacements: owner, name of the attribute, and the value to set.

    Threads that are started within the block receive the function mode.
    """
    accelerator = accelerator_of(target)
    autocast, autocasts = torch.amp.autocast_mode.autocast, bool(accelerator.autocast_dtypes)
    scaler = torch.amp.grad_scaler.GradScaler
    serialization = torch.serialization
    table: list[Patch] = [
        (autocast, "__init__", _init(autocast.__init__, "device_type", target, autocasts)),
        (scaler, "__init__", _init(scaler.__init__, "device", target, _scales(target))),
        (torch, "Generator", _generator(target)),
        (Tensor, "record_stream", lambda tensor, stream: None),  # a mode is asked too late
        (threading.Thread, "start", _start(threading.Thread.start, mode)),
        (torch.autograd, _ENGINE, _with_mode(getattr(torch.autograd, _ENGINE), mode)),
        (
            serialization,
            "default_restore_location",
            _restore(serialization.default_restore_location, target),
        ),
    ]
    if accelerator.is_out_of_tree:
        load, save = _load(torch.load, target), _save(torch.save)
        for owner in (torch, serialization):
            table += [(owner, "load", load), (owner, "save", save)]
    for name, function in cuda_functions(target).items():
        for module in map(importlib.import_module, _CUDA_MODULES):
            if hasattr(module, name):
                table.append((module, name, function))
    return table


def _init(
    init: Callable[..., None], device_argument: str, target: torch.device, works: bool
) -> Callable[..., None]:
    """Return a constructor that replaces CUDA, and disables the object if the target lacks it."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_redirected(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if names_cuda(bound.arguments[device_argument]):
            bound.arguments[device_argument] = target.type if works else "cpu"
            bound.arguments["enabled"] = bound.arguments["enabled"] and works
        init(*bound.args, **bound.kwargs)

    return init_redirected


def _scales(target: torch.device) -> bool:
    """Return whether the target has the operations of a gradient scaler, by trying them."""
    try:
        one = torch.ones((), device=target)
        torch._amp_foreach_non_finite_check_and_unscale_([one.clone()], one.clone(), one)
        torch._amp_update_scale_(one.clone(), one.int(), one.clone(), 2.0, 0.5, 1)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _generator(target: torch.device) -> type:
    original = torch.Generator

    class AnyGenerator(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            return original(target if names_cuda(device) else device)

    return AnyGenerator("Generator", (), {"__doc__": original.__doc__})


def _start(start: Callable[..., None], mode: CudaRedirection) -> Callable[..., None]:
    """Return a method `start` for threads: a thread begins without function modes."""

    @functools.wraps(start)
    def start_redirected(thread: threading.Thread) -> None:
        def run() -> None:
            del thread.run
            with mode:
                thread.run()

        thread.run = run  # type: ignore[method-assign]
        start(thread)

    return start_redirected


def _with_mode(function: Callable[..., Any], mode: CudaRedirection) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_mode(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return with_mode


def _restore(restore: Callable[..., Any], target: torch.device) -> Callable[..., Any]:
    """Return a function that places a storage of a file; it decides for `map_location` too."""
    # Torch cannot create a bare storage on a device out of its tree: `_load` moves the tensors.
    home = "cpu" if accelerator_of(target).is_out_of_tree else str(target)

    @functools.wraps(restore)
    def restore_redirected(storage: Any, location: str) -> Any:
        if names_cuda(location) or location == str(target):
            location = home
        return restore(storage, location)

    return restore_redirected


def _load(load: Callable[..., Any], target: torch.device) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_redirected(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        loaded = load(file, map_location, *args, **kwargs)
        if names_cuda(map_location) or map_location in (target, str(target)):
            return tree_map_only(Tensor, lambda tensor: tensor.to(target), loaded)
        return loaded

    return load_redirected


def _save(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def save_redirected(*args: Any, **kwargs: Any) -> None:
        with _SavedOnHost():
            save(*args, **kwargs)

    return save_redirected


class _SavedOnHost(TorchFunctionMode):
    """Pickles tensors as tensors of the host: `torch.load` refuses others with `weights_only`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__reduce_ex__:
            tensor, protocol = args
            host = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
            return host.__reduce_ex__(protocol)
        return func(*args, **kwargs or {})
