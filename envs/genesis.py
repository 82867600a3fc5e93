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


OPENGL = "it needs OpenGL: on Debian and Ubuntu, apt install libegl1 libgl1-mesa-dri"


def simulator_device(device: torch.device) -> torch.device:
    """Return the device on which Genesis simulates for a policy on `device`."""
    return device if accelerator_of(device).kind in _BACKENDS else torch.device("cpu")


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
    try:
        gs = importlib.import_module("genesis")
    except Exception as error:  # each platform of OpenGL fails in its own way
        raise ConfigurationError(
            f"Genesis cannot be imported: {_one_line(error)}; {OPENGL}"
        ) from error
    name = _BACKENDS.get(accelerator_of(device).kind, "cpu")
    backend = getattr(gs.constants.backend, name)
    if not gs._initialized:
        try:
            gs.init(backend=backend, logging_level="error")
        except gs.GenesisException as error:
            raise ConfigurationError(
                f"Genesis cannot use its backend {name}: {_one_line(error)}"
            ) from None
        # Genesis switches subnormal numbers off for the whole process.
        torch.set_flush_denormal(False)
    elif gs.backend != backend:
        raise ConfigurationError(
            f"Genesis already simulates on {gs.backend.name} in this process, which has one backend"
        )
    return gs


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
