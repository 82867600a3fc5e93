"""Resolution and description of the device to compute on."""

from __future__ import annotations

import importlib
import subprocess
import sys

import torch

from torchrl_gpu.devices.kinds import accelerator_of, available_devices
from torchrl_gpu.errors import ConfigurationError

_GIB = 2**30

# torch-directml can abort the process that imports it, so another one has to try first.
_DIRECTML_PROBE = (
    "import sys, torch, torch_directml; "
    "torch_directml.is_available() or sys.exit('it finds no adapter'); "
    "torch.ones(1, device=torch_directml.device()).add(1)"
)
_DIRECTML_PROBE_SECONDS = 120


def resolve_device(name: str) -> torch.device:
    """Return the torch device for a name.

    Args:
        name: `cpu`; `cuda` (NVIDIA, and AMD by ROCm), `xpu` (Intel) or `mps` (Apple), with an
            optional index, as in `cuda:1`; `directml` (Windows and WSL, through the package
            torch-directml); or `auto`, the first available of cuda, xpu, mps and cpu.

    Raises:
        ConfigurationError: this machine has no such device; the message lists the available ones.
    """
    available = available_devices()
    if name == "auto":
        return torch.device(available[0])
    if name == "directml":
        return _directml()
    kind, _, index = name.partition(":")
    full_name = name if kind == "cpu" or index else f"{name}:0"
    if full_name not in available:
        raise ConfigurationError(
            f"device={name} is not available; this machine has: auto, {', '.join(available)}"
        )
    return torch.device(full_name)


def describe_device(device: torch.device) -> str:
    """Return a one-line description of a device, such as `NVIDIA H200, 140 GiB`.

    Args:
        device: device of this machine.
    """
    accelerator = accelerator_of(device)
    memory = accelerator.total_memory
    return accelerator.name if memory is None else f"{accelerator.name}, {memory / _GIB:.0f} GiB"


def _directml() -> torch.device:
    """Return the DirectML device, after a child process has computed on it."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _DIRECTML_PROBE],
            capture_output=True,
            text=True,
            timeout=_DIRECTML_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"it did not answer within {_DIRECTML_PROBE_SECONDS} s"
    else:
        if probe.returncode == 0:
            directml = importlib.import_module("torch_directml")
            device: torch.device = directml.device()
            return device
        reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
    raise ConfigurationError(
        f"device=directml is not available ({reason}); "
        f"this machine has: auto, {', '.join(available_devices())}"
    )
