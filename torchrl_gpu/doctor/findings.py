"""State of a machine: versions, devices with their capabilities, and missing installations."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import NO_GPU, NOT_STARTED, accelerator_of
from torchrl_gpu.doctor.hardware import Card, cards, linux_advice, operating_system
from torchrl_gpu.errors import one_line

# Distributions of optional packages, and the way to install each. Box2D is left out, because it
# has distributions of two names.
_OPTIONAL: Final = {
    "ale-py": "extra atari",
    "genesis-world": "extra genesis",
    "hydra-submitit-launcher": "extra cluster",
    "minari": "extra data",
    "mujoco": "extra mujoco",
    "onnxruntime": "extra export",
    "optuna": "extra tune",
    "ray": "extra ray",
    "rsl-rl-lib": "extra rsl_rl",
    "stable-baselines3": "extra sb3",
    "torch-directml": "see docs/directml.md",
    "trackio": "extra trackio",
    "viser": "extra viewer",
    "wandb": "extra wandb",
}

# Attributes of an `Accelerator`.
_CAPABILITIES: Final = (
    *("name", "driver", "total_memory", "free_memory", "float64", "autocast_dtypes", "tf32"),
    *("fused_adam", "capturable_adam", "graphs", "onednn", "compile"),
    *("pinned_transfers", "has_generator", "genesis_backend"),
)


class Absence(NamedTuple):
    """A kind of device that this machine does not have."""

    reason: str
    advice: str | None  # command or step that installs it; None if this machine cannot have it


class Findings(NamedTuple):
    """State of a machine."""

    system: dict[str, str]  # versions and facts of the host, by name
    devices: dict[str, dict[str, Any]]  # capabilities by name, by the device's name for `device=`
    absent: dict[str, Absence]  # by kind
    unused: list[Card]  # those that no available kind of device can use


def find() -> Findings:
    """Examine this machine; takes seconds if torch-directml is installed."""
    found = cards()
    devices: dict[str, dict[str, Any]] = {}
    absent: dict[str, Absence] = {}
    usable: set[str] = set()
    for kind in kinds.KINDS:
        count, reason = kind.look()
        for index, name in enumerate(kind.names(count)):
            devices[name] = _capabilities(accelerator_of(kind.at(index)), found or [])
            usable.update(kind.vendors)
        if not count:
            absent[kind.kind] = _absence(kind, reason, found)
    unused = [card for card in found or [] if card.vendor not in usable]
    return Findings(_system(), devices, absent, unused)


def _system() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    versions["cores"] = (
        f"{num_cores()} of {os.cpu_count()}; torch uses {torch.get_num_threads()} thread(s)"
    )
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
    """Return the accelerators that torch is built for, with their versions if torch has them."""
    builds = {
        "CUDA": torch.version.cuda,
        "ROCm": torch.version.hip,
        "XPU": getattr(torch.version, "xpu", None),
        "MPS": torch.backends.mps.is_built() or None,
    }
    named = [n if v is True else f"{n} {v}" for n, v in builds.items() if v is not None]
    return ", ".join(named) or "the CPU only"


def _capabilities(accelerator: Accelerator, found: Sequence[Card]) -> dict[str, Any]:
    """Return the capabilities of a device by name; an error message for one that fails."""
    facts: dict[str, Any] = {}
    failed: set[str] = set()
    for name in _CAPABILITIES:
        try:
            value = getattr(accelerator, name)
        except Exception as error:  # a broken driver can raise anything; the other facts remain
            value = f"failed: {one_line(error)}"
            failed.add(name)
        is_dtypes = isinstance(value, tuple)
        facts[name] = [str(d).removeprefix("torch.") for d in value] if is_dtypes else value
    drivers = [card.driver for card in found if card.vendor in accelerator.vendors and card.driver]
    if drivers and (facts["driver"] is None or "driver" in failed):
        facts["driver"] = drivers[0]
    return facts


def _absence(kind: type[Accelerator], reason: str, found: Sequence[Card] | None) -> Absence:
    """Return why this machine lacks a kind of device, and the step that installs it."""
    system = operating_system()
    install = kind.installs.get(system)
    if install is None:
        return Absence(f"{reason}; not available on {system}", None)
    if found is None:
        return Absence(reason, install)
    cards_of_kind = [card for card in found if card.vendor in kind.vendors]
    if not cards_of_kind:
        return Absence(f"{reason}; no {' or '.join(kind.vendors)} GPU found", None)
    names = ", ".join(card.name for card in cards_of_kind)
    return Absence(f"{reason}; found: {names}", _advice(reason, cards_of_kind[0], install))


def _advice(reason: str, card: Card, install: str) -> str:
    """Return the step by which torch finds a card."""
    if reason.startswith(NOT_STARTED):
        return "update its driver, or install a torch for an older one"
    if reason != NO_GPU:
        return install
    if operating_system() == "Linux":
        return linux_advice(card, Path("/"))
    return "install its driver"
