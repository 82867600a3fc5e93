"""Hints for `torch.compile`, and operations that need them or that it cannot trace otherwise."""

from typing import Any, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=tuple[Any, ...])


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


def replaced(values: Values, **changes: Any) -> Values:
    """Return a named tuple with some other values.

    Its own `_replace` is not traced by all versions of the compiler, such as that of torch 2.11.
    """
    names: tuple[str, ...] = values._fields  # type: ignore[attr-defined]
    return type(values)(
        *(changes.get(name, value) for name, value in zip(names, values, strict=True))
    )
