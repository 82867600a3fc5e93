import json
import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchrl_gpu.doctor.hardware import (
    Card,
    cards,
    linux_advice,
    linux_cards,
    operating_system,
    windows_cards,
)

RADEON = {
    "Name": "AMD Radeon RX 6700S",
    "PNPDeviceID": r"PCI\VEN_1002&DEV_73EF&SUBSYS_17621043&REV_C1\6&1B2",
    "DriverVersion": "31.0.24033.1003",
}
DISPLAY_LINK = {"Name": "DisplayLink", "PNPDeviceID": r"USB\VID_17E9", "DriverVersion": "11"}


def add_pci_device(
    root: Path, address: str, vendor: str, device: str, kind: str, driver: str | None
) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
        (folder / name).write_text(text + "\n")
    if driver is not None:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(module)


def test_cards_on_the_pci_bus(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:02.0", "0x8086", "0x9a49", "0x030000", "i915")
    add_pci_device(tmp_path, "0000:01:00.0", "0x10de", "0x2330", "0x030200", "nvidia")
    add_pci_device(tmp_path, "0000:02:00.0", "0x1002", "0x73ef", "0x038000", None)
    add_pci_device(tmp_path, "0000:03:00.0", "0x8086", "0x15bc", "0x020000", "e1000e")
    add_pci_device(tmp_path, "0000:04:00.0", "0x1a03", "0x2000", "0x030000", "ast")
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("575.57.08\n")
    information = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    assert linux_cards(tmp_path) == [
        Card("Intel", "Intel GPU 8086:9a49", "i915"),
        Card("NVIDIA", "NVIDIA H100 80GB HBM3", "575.57.08"),
        Card("AMD", "AMD GPU 1002:73ef", None),
    ]


def test_a_machine_without_pci_bus_has_no_cards(tmp_path: Path) -> None:
    assert linux_cards(tmp_path) == []


NODES = {
    "NVIDIA": ("dev/nvidiactl", "dev/nvidia0"),
    "AMD": ("dev/kfd", "dev/dri/renderD128"),
    "Intel": ("dev/dri/renderD128",),
}


def add_nodes(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize(
    ("vendor", "option"),
    [
        ("NVIDIA", "/dev/nvidiactl is missing: start the container with --gpus all"),
        ("AMD", "/dev/kfd is missing: start the container with --device=/dev/kfd --device=/dev/"),
        ("Intel", "/dev/dri/renderD is missing: start the container with --device=/dev/dri"),
    ],
)
def test_a_container_without_its_card(vendor: str, option: str, tmp_path: Path) -> None:
    assert option in linux_advice(Card(vendor, "the card", "1.2"), tmp_path)


def test_a_container_with_a_part_of_its_card(tmp_path: Path) -> None:
    add_nodes(tmp_path, "dev/kfd")
    assert "/dev/dri/renderD is missing" in linux_advice(Card("AMD", "a", "1.2"), tmp_path)


@pytest.mark.parametrize("vendor", NODES)
def test_a_user_without_the_group_of_the_card(
    vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_nodes(tmp_path, *NODES[vendor])
    card = Card(vendor, "the card", "1.2")
    assert linux_advice(card, tmp_path) == (
        "its driver is loaded and open to this user: update the driver"
    )
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may open every file
    monkeypatch.setattr(Path, "group", lambda path: "render")
    assert linux_advice(card, tmp_path) == (
        f"this user may not open {tmp_path / NODES[vendor][0]}: sudo usermod -aG render $USER, "
        "then log in again"
    )


@pytest.mark.parametrize("driver", [None, "nouveau"])
def test_a_card_that_does_not_compute_needs_its_driver(driver: str | None, tmp_path: Path) -> None:
    assert linux_advice(Card("NVIDIA", "the card", driver), tmp_path) == "install its driver"


@pytest.mark.parametrize("answer", [RADEON, [RADEON, DISPLAY_LINK]])
def test_cards_of_windows(answer: Any) -> None:
    assert windows_cards(json.dumps(answer)) == [
        Card("AMD", "AMD Radeon RX 6700S", "31.0.24033.1003")
    ]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr("shutil.which", lambda name: name)


@pytest.mark.usefixtures("windows")
def test_windows_is_asked_by_powershell(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert command[0] == "powershell.exe"
        return SimpleNamespace(stdout=json.dumps(RADEON))

    monkeypatch.setattr(subprocess, "run", run)
    assert [card.vendor for card in cards() or []] == ["AMD"]


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("answer", ["", "null", "[{}]", "an error", OSError()])
def test_a_powershell_that_does_not_answer_leaves_the_cards_unknown(
    answer: str | OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **options: Any) -> Any:
        if isinstance(answer, OSError):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(subprocess, "run", run)
    assert cards() is None


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Linux", "6.8.0-generic", "Linux"),
        ("Linux", "5.15.167.4-microsoft-standard-WSL2", "WSL"),
        ("Windows", "11", "Windows"),
    ],
)
def test_wsl_is_told_from_linux(
    system: str, release: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert operating_system() == expected
