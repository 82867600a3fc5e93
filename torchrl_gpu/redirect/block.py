"""The block within which `cuda` is another device."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.redirect.cuda import DeviceContext
from torchrl_gpu.redirect.mode import CudaRedirection
from torchrl_gpu.redirect.patches import patches


@contextmanager
def redirect_cuda(device: str | torch.device = "auto") -> Iterator[torch.device]:
    """Run code that hard-codes `cuda` on the accelerator of this machine, or on its CPU.

        with redirect_cuda():
            model = torch.nn.Linear(3, 3).cuda()
            model(torch.randn(2, 3, device="cuda:0"))

    Every CUDA device, with any index, is the same device within the block, in the calling thread
    and in threads and processes that it starts, except processes by `spawn`, which import torch
    again. Nothing is changed if the device is a CUDA device, and nothing remains changed after the
    block. docs/redirect.md lists the limits.

    Args:
        device: device that replaces `cuda`, which the block receives: a name for `resolve_device`,
            or a torch device.

    Raises:
        ConfigurationError: this machine has no such device.
        RuntimeError: the block is within another one.
    """
    if issubclass(torch.cuda.device, DeviceContext):
        raise RuntimeError("redirect_cuda: cuda is already redirected; blocks cannot be nested")
    target = device if isinstance(device, torch.device) else resolve_device(device)
    if target.type == "cuda":
        yield target
        return
    target = torch.empty(0, device=target).device  # with the index that tensors report
    mode = CudaRedirection(target)
    with ExitStack() as stack:
        for owner, name, value in patches(target, mode):
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.callback(setattr, mode, "active", False)
        stack.enter_context(mode)
        yield target
