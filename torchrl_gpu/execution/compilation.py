"""Torch's compiler: its settings, the tracing of gradients, and its errors."""

import importlib
import inspect
import subprocess
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import one_line, shortened
from torchrl_gpu.execution.learner import Differentiation, Learner, Losses
from torchrl_gpu.execution.options import Compilation

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Torch's name of each mode. Its own `max-autotune` would also capture graphs, as `graphs` does.
_TORCH_MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}

# Each agent has its own share of the compiled forms that torch keeps of one function.
_IS_ISOLATING = "isolate_recompiles" in inspect.signature(torch.compile).parameters
ISOLATION: dict[str, Any] = {"isolate_recompiles": True} if _IS_ISOLATING else {}

# At each call, compiled code checks all objects that it was traced with. Functions and other global
# variables do not change, and are half of them. Torch 2.4 cannot leave them out.
_CHECKED = getattr(torch.compiler, "skip_guard_on_globals_unsafe", None)
CHECKS: dict[str, Any] = {} if _CHECKED is None else {"guard_filter_fn": _CHECKED}

# Whether compiled code can hold `backward`, so that losses and gradients are one graph. Autograd
# then does nothing in an update, which takes up to a fifth less time on a CPU.
TRACES_GRADIENTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

# Attributes of `nn.Module` with the hooks around `forward` and `backward`.
_LAYER_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def compiled(
    function: Callable[Arguments, Result],
    mode: Compilation,
    device: torch.device,
    **settings: Any,
) -> Callable[Arguments, Result]:
    """Return the form of a function that is compiled for a device at its first call.

    Later changes of global variables that the function reads have no effect. The settings are
    those of `torch.compile`, such as `dynamic`.
    """
    options = importlib.import_module("torch._inductor").list_mode_options(_TORCH_MODES[mode])
    if accelerator_of(device).keeps_layouts:
        options["layout_optimization"] = False
    return torch.compile(function, options=options | CHECKS, **settings, **ISOLATION)


def with_traced_gradients(
    compiled: Differentiation, eager: Differentiation, learner: Learner
) -> Differentiation:
    """Let a compiled function hold `backward`, where torch traces it.

    While a trained parameter has a hook, or a layer one that it did not have before the first call,
    the function runs eagerly: compiled code would ignore the hook.
    """
    if not TRACES_GRADIENTS:
        return compiled
    # An import at the top of the module would take a second of each start.
    traced = importlib.import_module("torch._dynamo.config").patch(trace_autograd_ops=True)
    # Torch could check the hooks of layers as well, but takes ten times as long. It traces those
    # that are there already, such as that of `spectral_norm`.
    hooks = [getattr(layer, kind) for layer in learner.modules() for kind in _LAYER_HOOKS]
    without_hooks = [each for each in hooks if not each]

    def differentiate(batch: TensorDictBase, factor: Tensor) -> Losses:
        has_hooks = any(without_hooks) or any(
            parameter._backward_hooks or parameter._post_accumulate_grad_hooks
            for optimizer in learner.optimizers().values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        if has_hooks:
            return eager(batch, factor)
        with traced:
            return compiled(batch, factor)

    return differentiate


def compiler_problem(error: Exception) -> str | None:
    """Return the message of torch's compiler, or of its C++ compiler; None for another error."""
    dynamo = importlib.import_module("torch._dynamo.exc")
    inductor = importlib.import_module("torch._inductor.exc")
    if not isinstance(error, (dynamo.TorchDynamoException, inductor.CppCompileError)):
        return None
    return shortened(one_line(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0]), 400)


def is_interrupted(error: BaseException | None) -> bool:
    """Return whether a signal has ended the C++ compiler, which Ctrl-C reaches as well."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError):
            return error.returncode < 0
        error = error.__cause__ or error.__context__
    return False
