"""Resolution and description of the device to compute on."""

import logging
from typing import Literal

import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import accelerator_of, available_devices, kinds_by_type
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import counted

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
        problem = f"is not available: {reason} (torchrl-gpu doctor shows how to install it)"
        raise _refusal(name, problem)
    if colon and not (index.isdecimal() and int(index) < count):
        raise _refusal(name, f"is not available: {kind_name} has the indices 0 to {count - 1}")
    return kind.at(int(index) if colon else None)


def check_device(device: torch.device) -> None:
    """Refuse a device that this machine lacks."""
    try:
        torch.empty((), device=device)
    except Exception:
        resolve_device(str(device))  # whose error names the devices of this machine
        raise


def resolve_devices(name: str, wanted: int | list[int] | Literal["all"]) -> list[torch.device]:
    """Return the devices of the processes of one run, which are of one kind.

    Args:
        name: kind of the devices, see `resolve_device`.
        wanted: number of devices; their indices; or `all`. A CPU takes one process per core at
            most.

    Raises:
        ConfigurationError: this machine does not have so many devices; the message says how many.
    """
    first = resolve_device(name)
    kind = type(accelerator_of(first))
    typed = f"device={name} devices={wanted}"
    if ":" in name:
        raise ConfigurationError(f"{typed}: leave out the index, or leave out devices=")
    is_host = kind.at(0) == kind.at(1)
    count = num_cores() if is_host else kind.look().number
    if isinstance(wanted, list):
        indices = sorted(set(wanted))
        if is_host or len(indices) < len(wanted) or not 0 <= indices[0] <= indices[-1] < count:
            known = "a number of processes" if is_host else f"different indices, 0 to {count - 1}"
            raise ConfigurationError(f"{typed}: {kind.kind} takes {known}")
        return [kind.at(index) for index in wanted]
    number = count if wanted == "all" else wanted
    if number > count:
        things = counted(count, "core") if is_host else counted(count, f"{kind.kind} device")
        raise ConfigurationError(f"{typed}: this machine has {things}")
    return [kind.at(index) for index in range(number)]


def describe_device(device: torch.device) -> str:
    """Return a one-line description of a device of this machine, such as `NVIDIA H200, 140 GiB`."""
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
