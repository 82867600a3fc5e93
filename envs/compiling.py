"""Hints for `torch.compile`, and an operation that needs them."""

import torch
from torch import Tensor


def stored(tensor: Tensor) -> Tensor:
    """Return the tensor unchanged, and make compiled code compute it once and store it.

    Without this hint the compiler inlines values that look cheap (random bits, gathered rows) into
    each use, and recomputes them every time.
    """
    if torch.compiler.is_compiling():
        return tensor.as_strided(tensor.shape, tensor.stride())
    return tensor


def look_up(values: Tensor, index: Tensor) -> Tensor:
    """Return the elements of the flattened tensor at the given indices; faster than `take`."""
    return stored(values.reshape(-1).index_select(0, index.reshape(-1)).view(index.shape))
