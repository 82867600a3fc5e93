"""Checks of the contents of state files: one with a valid checksum may have been edited."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from torchrl_gpu.checkpoints.tensors import StoredTensor
from torchrl_gpu.errors import ConfigurationError, WorkerError, one_line, shortened

# Errors that ordinary code raises where a file holds something that it does not expect.
UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def reading(path: Path, setting: str = "checkpoint") -> Iterator[None]:
    """Report errors of Python and torch in the block in one line that names file and setting."""
    try:
        yield
    except (ConfigurationError, WorkerError):
        raise
    except UNEXPECTED as error:
        cause = shortened(f"{type(error).__name__}: {one_line(error)}", 200)
        raise ConfigurationError(f"{setting}={path}: damaged or edited: {cause}") from error


def check_like(
    saved: Any, expected: Any, name: str = "the saved state", *, is_exact: bool = False
) -> None:
    """Refuse a state of other names, types, shapes or dtypes than expected.

    Unless `is_exact`, tensors of floating-point numbers may differ in precision, because devices
    do. Saved tensors may be `StoredTensor`s. Any value is accepted where `expected` has None;
    `name` is that of the state in errors.
    """
    problem = None
    if isinstance(expected, Mapping):
        if not isinstance(saved, Mapping):
            problem = "is not a mapping"
        elif missing := sorted(map(str, expected.keys() - saved.keys())):
            problem = f"lacks {shortened(missing[0])}"
        elif unknown := sorted(map(str, saved.keys() - expected.keys())):
            problem = f"has an unknown entry {shortened(unknown[0])}"
        else:
            for key, each in expected.items():
                check_like(saved[key], each, f"{name}, {key}", is_exact=is_exact)
    elif isinstance(expected, Tensor | StoredTensor):
        problem = difference(saved, expected, is_exact=is_exact)
    elif isinstance(expected, list | tuple):
        if not isinstance(saved, type(expected)) or len(saved) != len(expected):
            problem = f"is not a {type(expected).__name__} of {len(expected)} values"
        else:
            for index, each in enumerate(expected):
                check_like(saved[index], each, f"{name}, {index}", is_exact=is_exact)
    elif isinstance(expected, float):
        if isinstance(saved, bool) or not isinstance(saved, int | float):
            problem = "is not a number"
        elif not math.isfinite(saved):
            problem = "is NaN or infinite"
    elif expected is not None and type(saved) is not type(expected):
        problem = f"is not of type {type(expected).__name__}"
    if problem is not None:
        raise ConfigurationError(f"{name} {problem}")


def difference(
    saved: Any, expected: Tensor | StoredTensor, *, is_exact: bool = False
) -> str | None:
    """Return how a saved tensor differs from an expected one; None if it fits."""
    if not isinstance(saved, Tensor | StoredTensor):
        return "is not a tensor"
    are_floats = saved.dtype.is_floating_point and expected.dtype.is_floating_point
    is_like = saved.dtype == expected.dtype or (are_floats and not is_exact)
    if saved.shape == expected.shape and is_like:
        return None
    return (
        f"has shape {shortened(str(list(saved.shape)))} and {saved.dtype}, "
        f"not {list(expected.shape)} and {expected.dtype}"
    )


def check_count(value: Any, name: str, low: int = 0, high: int = 10**12 - 1) -> None:
    """Refuse a value, `name` in errors, that is not an integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        shown = shortened(str(value)) if isinstance(value, int | float) else type(value).__name__
        raise ConfigurationError(f"{name}={shown}: not a whole number from {low} to {high}")
