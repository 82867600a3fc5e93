"""Replacements for the parts of torch that no function mode reaches."""

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
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
    table: list[Patch] = [
        _wrapped(autocast, "__init__", _init, "device_type", target, autocasts),
        _wrapped(scaler, "__init__", _init, "device", target, _scales(target)),
        (torch, "Generator", _generator(target)),
        (Tensor, "record_stream", lambda tensor, stream: None),  # a mode is asked too late
        _wrapped(threading.Thread, "start", _start, mode),
        _wrapped(torch.autograd, _ENGINE, _with_mode, mode),
        _wrapped(torch.serialization, "default_restore_location", _restore, target),
        _wrapped(torch.random, "fork_rng", _fork),
    ]
    if accelerator.is_out_of_tree:
        for owner in (torch, torch.serialization):
            table.append(_wrapped(owner, "load", _load, target))
            table.append(_wrapped(owner, "save", _with_mode, _SavedOnHost()))
    for name, function in cuda_functions(target).items():
        for module in map(importlib.import_module, _CUDA_MODULES):
            if hasattr(module, name):
                table.append((module, name, function))
    return table


def _wrapped(owner: Any, name: str, wrapper: Callable[..., Any], *own: Any) -> Patch:
    """Return the patch of a function by a wrapper, which takes the function and `own` first."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *own, *args, **kwargs)

    return owner, name, redirected


def _init(
    init: Callable[..., None],
    device_argument: str,
    target: torch.device,
    works: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Construct an object for the target in place of CUDA, disabled if it does not work there."""
    bound = inspect.signature(init).bind(*args, **kwargs)
    bound.apply_defaults()
    if names_cuda(bound.arguments[device_argument]):
        bound.arguments[device_argument] = target.type if works else "cpu"
        bound.arguments["enabled"] = bound.arguments["enabled"] and works
    init(*bound.args, **bound.kwargs)


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


def _start(start: Callable[..., None], mode: CudaRedirection, thread: threading.Thread) -> None:
    """Start a thread in the mode, because a thread begins without function modes."""

    def run() -> None:
        del thread.run
        with mode:
            thread.run()

    thread.run = run  # type: ignore[method-assign]
    start(thread)


def _with_mode(
    function: Callable[..., Any], mode: TorchFunctionMode, /, *args: Any, **kwargs: Any
) -> Any:
    with mode:
        return function(*args, **kwargs)


@contextlib.contextmanager
def _fork(fork: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Fork the generators of the host and, in place of that of CUDA, of the target."""
    bound = inspect.signature(fork).bind(*args, **kwargs)
    bound.apply_defaults()
    devices, enabled, device_type = (
        bound.arguments[name] for name in ("devices", "enabled", "device_type")
    )
    if not (device_type is None or names_cuda(device_type)):
        with fork(*args, **kwargs):
            yield
        return
    forks = enabled and (devices is None or bool(list(devices)))
    state = torch.cuda.get_rng_state() if forks else None
    try:
        with fork([], enabled):
            yield
    finally:
        if state is not None:
            torch.cuda.set_rng_state(state)


def _restore(restore: Callable[..., Any], target: torch.device, storage: Any, location: str) -> Any:
    """Place a storage of a file; this decides for `map_location` too."""
    if names_cuda(location) or location == str(target):
        # Torch cannot create a bare storage on a device out of its tree: `_load` moves the tensors.
        location = "cpu" if accelerator_of(target).is_out_of_tree else str(target)
    return restore(storage, location)


def _load(load: Callable[..., Any], target: torch.device, /, *args: Any, **kwargs: Any) -> Any:
    loaded = load(*args, **kwargs)
    place = inspect.signature(load).bind(*args, **kwargs).arguments.get("map_location")
    if names_cuda(place) or place in (target, str(target)):
        return tree_map_only(Tensor, lambda tensor: tensor.to(target), loaded)
    return loaded


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
