"""Float32 matrix products of layers on a CPU, by the faster of two libraries.

Torch computes them with MKL, which uses AVX-512 on Intel processors alone. oneDNN, which torch
contains as well and uses for bfloat16, also does so on AMD processors, where it is up to twice as
fast (https://github.com/pytorch/builder/issues/504).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchrl_gpu.execution.options import Library

# Below this number of multiplications, a call of oneDNN takes longer than one of torch.
_MIN_MULTIPLICATIONS: Final = 2_500_000

# A layer behind quantile fractions or the objects of a set has about so many rows per transition.
_MAX_ROWS_PER_TRANSITION: Final = 32

# oneDNN is chosen from this gain on, so that a loaded machine chooses as an idle one does: MKL is
# as fast on Intel processors, and takes twice as long on AMD's with AVX-512.
_MIN_GAIN: Final = 1.25

# Largest relative error of a product. That of float32 is about 3e-7, that of bfloat16 2e-3.
_MAX_ERROR: Final = 1e-5

# Rows, inputs and outputs of the product that is measured.
_MEASURED_SIZE: Final = 256

# So many that other programs on the machine leave some of them undisturbed.
_ROUNDS: Final = 30

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class ProductLayer(nn.Module):
    """Mixin of a layer with a matrix product.

    Attributes:
        library: library of its float32 products on a CPU from 2.5 million multiplications on, in
            forward and backward passes; torch computes smaller ones, those of other dtypes and of
            single vectors. Of several layers side by side, the product of each counts. An
            `Execution` sets it.
        weight: weights, whose last two dimensions are those of one product.
    """

    library: Library = "torch"
    weight: Tensor

    def product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b, `[*B, outputs]` for one layer, `[members, B, outputs]` for several.

        Args:
            inputs: x, `[*B, inputs]` or `[members, B, inputs]`.
            weight: W, `[outputs, inputs]` or `[members, outputs, inputs]`.
            bias: b, `[outputs]` or `[members, 1, outputs]`, or None.
        """
        members = weight.shape[:-2].numel()
        by_onednn = (
            self.library == "onednn"
            and inputs.is_cpu
            and inputs.ndim > 1
            and inputs.dtype == torch.float32
            and inputs.numel() * weight.shape[-2] >= _MIN_MULTIPLICATIONS * members
            and not torch.is_autocast_enabled("cpu")
        )
        return (_onednn_product if by_onednn else _torch_product)(inputs, weight, bias)


class Linear(ProductLayer, nn.Linear):
    """`nn.Linear` whose products an `Execution` may pass to a faster library.

    The transforms of `torch.func` and forward-mode differentiation need products of torch.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Map `[*B, inputs]` to `[*B, outputs]`."""
        return self.product(inputs, self.weight, self.bias)


def faster_library(
    layers: Iterable[ProductLayer], transitions: int
) -> tuple[Library, float | None]:
    """Measure which library computes float32 products and their gradients faster on a CPU.

    All agents are measured by one product, far from the sizes at which both libraries are equally
    fast: the same seed then gives the same result on one machine, although times vary. Takes about
    0.1 s, once in a process, and draws from no random stream. `transitions` is the number of
    transitions of a batch.

    Returns:
        The faster library, if it is as exact, and the speed of oneDNN divided by that of torch;
        None if all products are so small that torch computes them.
    """
    rows = transitions * _MAX_ROWS_PER_TRANSITION
    if all(rows * layer.weight.shape[-2:].numel() < _MIN_MULTIPLICATIONS for layer in layers):
        return "torch", None
    gain, is_exact = _measured()
    return "onednn" if gain >= _MIN_GAIN and is_exact else "torch", gain


@cache
def _measured() -> tuple[float, bool]:
    """Return the speed of oneDNN divided by that of torch, and whether oneDNN is as exact."""
    generator = torch.Generator().manual_seed(0)
    size = _MEASURED_SIZE
    *operands, gradient = (
        torch.randn(shape, generator=generator)
        for shape in ((size, size), (size, size), (size,), (size, size))
    )
    products = _torch_product, _onednn_product
    rounds = [[_time(product, operands, gradient) for product in products] for _ in range(_ROUNDS)]
    by_torch, by_onednn = (min(seconds) for seconds in zip(*rounds, strict=True))
    is_exact = _error(_onednn_product, operands, gradient) <= _MAX_ERROR
    return by_torch / by_onednn, is_exact


def _time(product: Product, operands: Iterable[Tensor], gradient: Tensor) -> float:
    """Return the seconds that a product and its three gradients take."""
    start = time.perf_counter()
    _with_gradients(product, operands, gradient)
    return time.perf_counter() - start


def _error(product: Product, operands: Iterable[Tensor], gradient: Tensor) -> float:
    """Return the largest relative error of a product and its gradients, against float64."""
    exact = _with_gradients(_torch_product, [each.double() for each in operands], gradient.double())
    found = _with_gradients(product, operands, gradient)
    return max(
        float((one.double() - other).norm() / other.norm())
        for one, other in zip(found, exact, strict=True)
    )


@torch.enable_grad()
def _with_gradients(
    product: Product, operands: Iterable[Tensor], gradient: Tensor
) -> tuple[Tensor, ...]:
    """Return a product, and the gradients of its operands for a gradient of the product."""
    leaves = [operand.detach().requires_grad_() for operand in operands]
    output = product(*leaves)
    return output.detach(), *torch.autograd.grad(output, leaves, gradient)


def _torch_product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.ndim == 2:
        return F.linear(inputs, weight, bias)
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias, inputs, weight.mT)


def _onednn_product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = _OneDnnProduct.apply(inputs, weight, bias)
    return product


class _OneDnnProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _multiply(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        to_inputs, to_weight, to_bias = ctx.needs_input_grad
        gradients: list[Tensor | None] = [None, None, None]
        # With gradients enabled, the gradients are differentiated again, as in a gradient penalty.
        multiply = _onednn_product if torch.is_grad_enabled() else _multiply
        if to_inputs:
            gradients[0] = multiply(gradient, weight.mT, None)
        if weight.ndim == 2:
            gradient, inputs = gradient.flatten(0, -2), inputs.flatten(0, -2)
        if to_weight:
            gradients[1] = multiply(gradient.mT, inputs.mT, None)
        if to_bias:
            gradients[2] = gradient.sum(-2, keepdim=weight.ndim == 3)
        return tuple(gradients)


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b by oneDNN."""
    if torch.compiler.is_compiling():
        product: Tensor = torch.ops.torchrl_gpu.product(inputs, weight, bias)
        return product
    return _call_onednn(inputs, weight, bias)


def _call_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    onednn: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
    if weight.ndim == 2:
        return onednn(inputs, weight, bias, "none", [], "")
    biases = [None] * len(weight) if bias is None else bias.flatten(1)
    members = zip(inputs, weight, biases, strict=True)
    return torch.stack([onednn(*member, "none", [], "") for member in members])


def _empty_product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], weight.shape[-2])


# An operator that torch's compiler calls as it is.
_OPERATORS: Final = torch.library.Library("torchrl_gpu", "DEF")
_OPERATORS.define("product(Tensor inputs, Tensor weight, Tensor? bias) -> Tensor")
_OPERATORS.impl("product", _call_onednn, "CPU")
torch.library.register_fake("torchrl_gpu::product", _empty_product, lib=_OPERATORS)
