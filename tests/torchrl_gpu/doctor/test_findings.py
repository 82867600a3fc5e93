from pathlib import Path

import pytest
import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator, Presence
from torchrl_gpu.devices.kinds import NO_GPU, NOT_STARTED
from torchrl_gpu.doctor import findings
from torchrl_gpu.doctor.hardware import Card

KINDS = {kind.kind: kind for kind in kinds.KINDS}


def machine(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    cards: list[Card] | None,
    reasons: dict[str, str] | None = None,
) -> findings.Findings:
    """Return the findings on a machine without accelerators that torch can use."""
    monkeypatch.setattr(findings, "operating_system", lambda: system)
    monkeypatch.setattr(findings, "cards", lambda: cards)
    for name, kind in KINDS.items():
        if name != "cpu":
            presence = Presence(0, (reasons or {}).get(name, "not in this torch"))
            monkeypatch.setattr(kind, "look", lambda presence=presence: presence)
    return findings.find()


def test_this_machine() -> None:
    found = findings.find()
    assert found.system["torch"].startswith(torch.__version__)
    assert found.devices.keys() | found.absent.keys() >= {"cpu"}
    cpu = found.devices["cpu"]
    assert cpu["float64"] is True
    assert cpu["total_memory"] > cpu["free_memory"] > 0
    assert cpu["genesis_backend"] == "cpu"


@pytest.mark.parametrize(
    ("system", "vendor", "kind", "command"),
    [
        ("Linux", "NVIDIA", "cuda", "whl/cu"),
        ("Windows", "NVIDIA", "cuda", "whl/cu"),
        ("Linux", "AMD", "rocm", "repo.amd.com"),
        ("WSL", "AMD", "rocm", "repo.amd.com"),
        ("Windows", "AMD", "rocm", "repo.amd.com"),
        ("Windows", "AMD", "directml", "torch-directml=="),
        ("WSL", "AMD", "directml", "torch-directml=="),
        ("Linux", "Intel", "xpu", "whl/xpu"),
        ("Windows", "Intel", "xpu", "whl/xpu"),
        ("Darwin", "Apple", "mps", "torch"),
    ],
)
def test_an_unused_card_is_named_with_the_command_that_brings_it(
    system: str, vendor: str, kind: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(vendor, "the card", "1.2")
    found = machine(monkeypatch, system, [card])
    assert found.unused == [card]
    reason, advice = found.absent[kind]
    assert reason == "not in this torch; found: the card"
    assert advice is not None
    assert advice.startswith("pip install ")
    assert command in advice


def test_the_system_knows_the_driver_if_torch_fails_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Accelerator) -> str:
        raise RuntimeError("lost\ndevice")

    monkeypatch.setattr(kinds.Cpu, "vendors", ("NVIDIA",))
    monkeypatch.setattr(kinds.Cpu, "driver", property(failing))
    assert machine(monkeypatch, "Linux", []).devices["cpu"]["driver"] == "failed: lost device"
    found = machine(monkeypatch, "Linux", [Card("NVIDIA", "the card", "1.2")])
    assert found.devices["cpu"]["driver"] == "1.2"


def test_a_card_without_driver_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("NVIDIA", "the card", None)
    found = machine(monkeypatch, "Linux", [card], {"cuda": NO_GPU})
    assert found.absent["cuda"] == (f"{NO_GPU}; found: the card", "install its driver")


def test_a_driver_that_does_not_start_is_to_be_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("NVIDIA", "the card", "470.1")
    found = machine(monkeypatch, "Linux", [card], {"cuda": f"{NOT_STARTED}, 2.13.0+cu130"})
    assert found.absent["cuda"].advice == "update its driver, or install a torch for an older one"


def test_a_driver_without_access_is_not_installed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(findings, "Path", lambda root: tmp_path)
    found = machine(monkeypatch, "Linux", [Card("NVIDIA", "the card", "575.57")], {"cuda": NO_GPU})
    assert found.absent["cuda"].advice == (
        "its driver is loaded, but /dev/nvidiactl is missing: start the container with --gpus all"
    )


def test_nothing_is_advised_where_it_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine(monkeypatch, "Linux", [])
    assert found.absent["rocm"] == ("not in this torch; no AMD GPU found", None)
    assert found.absent["directml"] == ("not in this torch; not available on Linux", None)


def test_everything_is_advised_where_the_cards_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine(monkeypatch, "Windows", None)
    advised = {name for name, absence in found.absent.items() if absence.advice is not None}
    assert advised == {"cuda", "rocm", "xpu", "directml"}
    assert found.unused == []


def test_a_device_that_does_not_answer_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def sick(self: Accelerator) -> int:
        raise RuntimeError("CUDA error:\nunknown error")

    monkeypatch.setattr(kinds.Cuda, "look", lambda: Presence(1))
    monkeypatch.setattr(kinds.Cuda, "name", property(sick))
    monkeypatch.setattr(kinds.Cuda, "total_memory", property(sick))
    monkeypatch.setattr(kinds.Cuda, "free_memory", property(sick))
    monkeypatch.setattr(kinds.Cuda, "driver", None)
    monkeypatch.setattr(findings, "cards", lambda: [Card("NVIDIA", "the card", "575.57")])
    found = findings.find()
    device = found.devices["cuda:0"]
    assert device["name"] == "failed: CUDA error: unknown error"
    assert device["pinned_transfers"] is True
    assert device["driver"] == "575.57"
    assert found.unused == []
