"""The simulator Genesis: initialized once per process, quiet, on the backend of the device."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

import torch

from torchrl_gpu.devices.accelerator import accelerator_of
from torchrl_gpu.errors import ConfigurationError

# Backends of Genesis by kind of accelerator; on any other kind, Genesis simulates on the CPU.
_BACKENDS = {"cuda": "cuda", "rocm": "amdgpu", "mps": "metal"}


def start_genesis(device: torch.device) -> Any:
    """Return the package `genesis`, initialized for a device.

    Args:
        device: compute device of the policy.

    Raises:
        ConfigurationError: Genesis is not installed, cannot run on this device, or runs on another
            backend in this process already.
    """
    if importlib.util.find_spec("genesis") is None:
        raise ConfigurationError('Genesis is not installed: pip install -e ".[genesis]"')
    logging.getLogger("OpenGL").setLevel(logging.WARNING)
    gs = importlib.import_module("genesis")
    name = _BACKENDS.get(accelerator_of(device).kind, "cpu")
    backend = getattr(gs.constants.backend, name)
    if not gs._initialized:
        try:
            gs.init(backend=backend, logging_level="error")
        except gs.GenesisException as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(f"Genesis cannot use its backend {name}: {reason}") from None
    elif gs.backend != backend:
        raise ConfigurationError(
            f"Genesis already simulates on {gs.backend.name} in this process, which has one backend"
        )
    return gs
