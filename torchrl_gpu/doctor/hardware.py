"""Graphics cards of a machine, found without torch and without packages of their makers."""

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchrl_gpu.devices.containers import text_of

_VENDORS: Final = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}  # by PCI vendor id
_DISPLAYS: Final = ("0x03", "0x12")  # PCI classes: displays, accelerators without one

_QUERY: Final = (
    "Get-CimInstance Win32_VideoController | "
    "Select-Object Name, PNPDeviceID, DriverVersion | ConvertTo-Json"
)


class Card(NamedTuple):
    """A graphics card."""

    vendor: str  # NVIDIA, AMD, Intel or Apple
    name: str  # with its PCI ids if the system does not know the name
    driver: str | None  # version of its driver, or its name if it has no version


# Files by which a process reaches the cards of a maker, and options that give a container these.
_ACCESS: Final = {
    "NVIDIA": (("dev/nvidiactl", "dev/nvidia[0-9]*"), "--gpus all"),
    "AMD": (("dev/kfd", "dev/dri/renderD*"), "--device=/dev/kfd --device=/dev/dri"),
    "Intel": (("dev/dri/renderD*",), "--device=/dev/dri"),
}

# Drivers that only draw, or pass a card on to a virtual machine.
_NO_COMPUTING: Final = {"nouveau", "nova_core", "radeon", "vfio-pci", "simpledrm"}


def operating_system() -> str:
    """Return Linux, WSL, Windows or Darwin."""
    is_wsl = platform.system() == "Linux" and "microsoft" in platform.release().lower()
    return "WSL" if is_wsl else platform.system()


def cards() -> list[Card] | None:
    """Return the cards of this machine; None if the system does not list them."""
    system = operating_system()
    if system == "Linux":
        return linux_cards(Path("/"))
    if system == "Darwin":
        return [Card("Apple", "Apple GPU", None)] if platform.machine() == "arm64" else []
    return _windows_cards()  # from WSL, too, which runs Windows programs


def linux_cards(root: Path) -> list[Card]:
    """Return the cards on the PCI bus, listed in `sys` and `proc` in the folder `root`."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(text_of(folder / "vendor").removeprefix("0x"))
        if vendor is None or not text_of(folder / "class").startswith(_DISPLAYS):
            continue
        ids = f"{text_of(folder / 'vendor')[2:]}:{text_of(folder / 'device')[2:]}"
        known = text_of(root / "proc/driver/nvidia/gpus" / folder.name / "information")
        model = re.search(r"^Model:\s*(.+)$", known, re.MULTILINE)
        name = model[1] if model else f"{vendor} GPU {ids}"
        found.append(Card(vendor, name, _linux_driver(folder / "driver", root)))
    return found


def linux_advice(card: Card, root: Path) -> str:
    """Return the step by which a process may use a card whose driver torch does not find.

    `root` is the folder of `dev`.
    """
    if card.driver is None or card.driver in _NO_COMPUTING:
        return "install its driver"
    patterns, option = _ACCESS[card.vendor]
    for pattern in patterns:
        nodes = sorted(root.glob(pattern))
        if not nodes:
            missing = "/" + pattern.partition("[")[0].removesuffix("*")
            return (
                f"its driver is loaded, but {missing} is missing: start the container with {option}"
            )
        if not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
            return (
                f"this user may not open {nodes[0]}: sudo usermod -aG {_group_of(nodes[0])} $USER, "
                "then log in again"
            )
    return "its driver is loaded and open to this user: update the driver"


def windows_cards(answer: str) -> list[Card]:
    """Return the cards in an answer of PowerShell: a JSON object of one, or a list of several.

    Raises:
        ValueError, LookupError, TypeError: the answer is not of this form.
    """
    content: Any = json.loads(answer)
    found = []
    for entry in content if isinstance(content, list) else [content]:
        ids = re.search(r"VEN_(\w{4})", entry["PNPDeviceID"] or "")
        vendor = _VENDORS.get(ids[1].lower()) if ids else None
        if vendor is not None:
            found.append(Card(vendor, entry["Name"] or vendor, entry["DriverVersion"]))
    return found


def _windows_cards() -> list[Card] | None:
    shell = shutil.which("powershell.exe") or shutil.which("pwsh")
    if shell is None:
        return None
    try:
        words = [shell, "-NoProfile", "-Command", _QUERY]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        return windows_cards(done.stdout)
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired):
        return None


def _linux_driver(link: Path, root: Path) -> str | None:
    """Return the driver of a PCI device: its version if it states one, else its name."""
    if not link.exists():
        return None
    name = link.resolve().name
    return text_of(root / "sys/module" / name / "version") or name


def _group_of(path: Path) -> str:
    """Return the group of a file; `render` where its number has no name, as in containers."""
    try:
        return path.group()
    except KeyError:
        return "render"
