"""State of a machine: versions, devices with their capabilities, and missing installations."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.kinds import NO_GPU, accelerator_of
from torchrl_gpu.doctor.hardware import Card, cards, operating_system

# Distributions of optional packages, and the way to install each.
_OPTIONAL: Final = {
    "ale-py": "extra atari",
    "genesis-world": "extra genesis",
    "mujoco": "extra mujoco",
    "torch-directml": "see docs/directml.md",
    "wandb": "extra wandb",
}

_CAPABILITIES: Final[dict[str, Callable[[Accelerator], Any]]] = {
    "name": lambda device: device.name,
    "total_memory": lambda device: device.total_memory,
    "free_memory": lambda device: device.free_memory,
    "float64": lambda device: device.float64,
    "autocast": lambda device: [str(d).removeprefix("torch.") for d in device.autocast_dtypes],
    "tf32": lambda device: device.tf32,
    "fused_adam": lambda device: device.fused_adam,
    "foreach_adam": lambda device: device.foreach_adam,
    "capturable_adam": lambda device: device.capturable,
    "graphs": lambda device: device.graphs,
    "compile": lambda device: device.compile,
    "pinned_transfers": lambda device: device.pinned_transfers,
    "own_generator": lambda device: device.has_generator,
    "genesis_backend": lambda device: device.genesis_backend,
}


class Absence(NamedTuple):
    """A kind of device that this machine does not have.

    Attributes:
        reason: reason for its absence.
        advice: command or step that would bring it; None where this machine cannot have it.
    """

    reason: str
    advice: str | None


class Findings(NamedTuple):
    """State of a machine.

    Attributes:
        system: versions and facts of the host, by name.
        devices: capabilities of each device, by its name for `device=`.
        absent: kinds of devices that are not here.
        unused: cards that no present kind of device can use.
    """

    system: dict[str, str]
    devices: dict[str, dict[str, Any]]
    absent: dict[str, Absence]
    unused: list[Card]


def find() -> Findings:
    """Examine this machine; takes seconds where torch-directml is installed."""
    found = cards()
    devices: dict[str, dict[str, Any]] = {}
    absent: dict[str, Absence] = {}
    usable: set[str] = set()
    for kind in kinds.KINDS:
        count, reason = kind.look()
        for index, name in enumerate(kind.names(count)):
            devices[name] = _capabilities(accelerator_of(kind.at(index)), kind, found or [])
            usable.update(kind.vendors)
        if not count:
            absent[kind.kind] = _absence(kind, reason, found)
    unused = [card for card in found or [] if card.vendor not in usable]
    return Findings(_system(), devices, absent, unused)


def _system() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    versions["cores"] = f"{os.cpu_count()}; torch uses {torch.get_num_threads()} thread(s)"
    versions["torch"] = f"{torch.__version__}, built for {_build()}"
    for name in ("torchrl", "tensordict"):
        versions[name] = importlib.metadata.version(name)
    for name, way in _OPTIONAL.items():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = f"not installed ({way})"
    return versions


def _build() -> str:
    """Return the accelerators that torch is built for, with versions where torch states them."""
    builds = {
        "CUDA": torch.version.cuda,
        "ROCm": torch.version.hip,
        "XPU": getattr(torch.version, "xpu", None),
        "MPS": torch.backends.mps.is_built() or None,
    }
    named = [n if v is True else f"{n} {v}" for n, v in builds.items() if v is not None]
    return ", ".join(named) or "the CPU only"


def _capabilities(
    accelerator: Accelerator, kind: type[Accelerator], found: Sequence[Card]
) -> dict[str, Any]:
    """Return the capabilities of a device; a message where the device does not answer."""
    facts: dict[str, Any] = {}
    for name, ask in _CAPABILITIES.items():
        try:
            facts[name] = ask(accelerator)
        except Exception as error:  # a sick driver fails in its own way, and the rest is wanted
            facts[name] = f"fails: {' '.join(str(error).split())}"
    drivers = [card.driver for card in found if card.vendor in kind.vendors and card.driver]
    facts["driver"] = accelerator.driver or next(iter(drivers), None)
    return facts


def _absence(kind: type[Accelerator], reason: str, found: Sequence[Card] | None) -> Absence:
    """Return the reason why a kind of device is not here, and the step that would bring it."""
    system = operating_system()
    install = kind.installs.get(system)
    if install is None:
        return Absence(f"{reason}; not for {system}", None)
    if found is None:
        return Absence(reason, install)
    names = [card.name for card in found if card.vendor in kind.vendors]
    if not names:
        return Absence(f"{reason}; no GPU of {' or '.join(kind.vendors)} found", None)
    advice = "install its driver" if reason == NO_GPU else install
    return Absence(f"{reason}; found: {', '.join(names)}", advice)
