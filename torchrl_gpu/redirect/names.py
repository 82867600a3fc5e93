"""Names of CUDA devices."""

from __future__ import annotations

import re
from typing import Any

import torch

_CUDA = re.compile(r"cuda(:\d+)?$")


def names_cuda(device: Any) -> bool:
    """Return whether a value names a CUDA device, as `cuda`, `cuda:1` or a `torch.device` do.

    Args:
        device: any value.
    """
    if isinstance(device, str):
        return _CUDA.match(device) is not None
    return isinstance(device, torch.device) and device.type == "cuda"
