"""Maximum pooling that torch's compiler calls as it is.

Its generated code takes four times as long on a CPU, with which a compiled update of a residual
network would take one and a half times as long as an eager one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

# An exported file must not contain an operator of this library. Where torch cannot tell an export
# from a compilation, compiled updates pool by generated code.
_is_exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", torch.compiler.is_compiling
)


class MaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d` with equal kernel, stride and padding in both directions."""

    def __init__(self, kernel: int, stride: int, padding: int = 0) -> None:
        super().__init__(kernel, stride, padding)

    def forward(self, images: Tensor) -> Tensor:
        """Pool `[*B, C, H, W]`."""
        if not (torch.compiler.is_compiling() and images.is_cpu) or _is_exporting():
            return super().forward(images)
        pooled: Tensor = _MaxPool.apply(images, self.kernel_size, self.stride, self.padding)
        return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, *sizes: int) -> Tensor:
        pooled, places = torch.ops.torchrl_gpu.max_pool(images, *sizes)
        ctx.save_for_backward(images, places)
        ctx.sizes = sizes
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, places = ctx.saved_tensors
        pool_back = torch.ops.torchrl_gpu.max_pool_backward
        return pool_back(gradient, images, places, *ctx.sizes), None, None, None


def _pool(images: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    pool = torch.ops.aten.max_pool2d_with_indices
    pooled, places = pool(images, [kernel, kernel], [stride, stride], [padding, padding])
    return pooled, places


def _pool_backward(
    gradient: Tensor, images: Tensor, places: Tensor, kernel: int, stride: int, padding: int
) -> Tensor:
    pool_backward = torch.ops.aten.max_pool2d_with_indices_backward
    sizes = [kernel, kernel], [stride, stride], [padding, padding]
    result: Tensor = pool_backward(gradient, images, *sizes, [1, 1], False, places)
    return result


_SIZES = "int kernel, int stride, int padding"
_OPERATORS: Final = torch.library.Library("torchrl_gpu", "FRAGMENT")
_OPERATORS.define(f"max_pool(Tensor images, {_SIZES}) -> (Tensor, Tensor)")
_OPERATORS.impl("max_pool", _pool, "CompositeExplicitAutograd")
_OPERATORS.define(
    f"max_pool_backward(Tensor gradient, Tensor images, Tensor places, {_SIZES}) -> Tensor"
)
_OPERATORS.impl("max_pool_backward", _pool_backward, "CompositeExplicitAutograd")
