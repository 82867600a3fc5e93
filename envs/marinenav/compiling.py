"""What `torch.compile` has to be told."""

from __future__ import annotations

import torch
from torch import Tensor


def stored(tensor: Tensor) -> Tensor:
    """Return the tensor itself; compiled code then computes it once and keeps it.

    Left alone, the compiler inlines cheap-looking values (random bits, gathered rows) into each of
    their uses, and computes them again every time.
    """
    if torch.compiler.is_compiling():
        return tensor.as_strided(tensor.shape, tensor.stride())
    return tensor
