"""Resolution and description of the device to compute on."""

import logging

import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.kinds import accelerator_of, available_devices, kinds_by_type
from torchrl_gpu.errors import ConfigurationError

_logger = logging.getLogger(__name__)


def resolve_device(name: str) -> torch.device:
    """Return the torch device for a name.

    `auto` picks the first one available of cuda, rocm, xpu, mps, directml and cpu, and logs one
    line that says why it passed over the others.

    Args:
        name: `auto`, or a kind with an optional index, as in `cuda:1`: `cuda` (NVIDIA), `rocm`
            (AMD), `xpu` (Intel), `mps` (Apple), `directml` (Windows and WSL, through the package
            torch-directml) or `cpu`. A build of torch for ROCm accepts `cuda` for `rocm`, because
            torch itself names AMD GPUs so.

    Raises:
        ConfigurationError: this machine has no such device; the message lists the available ones.
    """
    if name == "auto":
        return _first_device()
    kind_name, colon, index = name.partition(":")
    # Torch's own name comes first: `cuda` is AMD in a build for ROCm.
    known = {kind.kind: kind for kind in kinds.KINDS} | kinds_by_type()
    if kind_name not in known:
        raise _refusal(name, f"is not one of auto, {', '.join(k.kind for k in kinds.KINDS)}")
    kind = known[kind_name]
    count, reason = kind.look()
    if not count:
        problem = f"is not available: {reason} (torchrl-gpu doctor says what to install)"
        raise _refusal(name, problem)
    if colon and not (index.isdecimal() and int(index) < count):
        raise _refusal(name, f"is not available: {kind_name} has the indices 0 to {count - 1}")
    return kind.at(int(index) if colon else None)


def describe_device(device: torch.device) -> str:
    """Return a one-line description of a device, such as `NVIDIA H200, 140 GiB`.

    Args:
        device: device of this machine.
    """
    accelerator = accelerator_of(device)
    memory = accelerator.total_memory
    return accelerator.name if memory is None else f"{accelerator.name}, {memory / 2**30:.0f} GiB"


def _first_device() -> torch.device:
    """Return the first device available, and log in one line why it was chosen."""
    passed_over: dict[str, list[str]] = {}
    for position, kind in enumerate(kinds.KINDS):
        count, reason = kind.look()
        if count:
            later = [other.kind for other in kinds.KINDS[position + 1 :]]
            if later:
                passed_over[f"{kind.kind} comes first"] = later
            reasons = (f"{', '.join(names)}: {why}" for why, names in passed_over.items())
            _logger.info("device: %s (%s)", kind.kind, "; ".join(reasons))
            return kind.at(None)
        passed_over.setdefault(reason, []).append(kind.kind)
    raise AssertionError("every machine has a CPU")


def _refusal(name: str, problem: str) -> ConfigurationError:
    """Return the error for the name of a device, which lists the devices of this machine."""
    available = ", ".join(available_devices())
    return ConfigurationError(f"device={name} {problem}; this machine has: auto, {available}")
