import logging
import re
import warnings

import pytest
import torch

from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator, Presence
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError

HAS_NO_ACCELERATOR = not (
    torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
)


def test_cpu() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    description = describe_device(torch.device("cpu"))
    assert re.fullmatch(rf"cpu, {num_cores()} cores?, \d+ GiB", description)


def test_auto_returns_a_working_device() -> None:
    device = resolve_device("auto")
    assert torch.ones(2, device=device).sum().item() == 2.0
    assert (device.type == "cpu") == HAS_NO_ACCELERATOR
    assert "\n" not in describe_device(device)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:99", "cpu:1", "cuda:first", "npu"])
def test_an_unavailable_device_is_rejected_in_one_line(name: str) -> None:
    said = rf"^device={name} .*this machine has: auto, .*cpu$"
    with pytest.raises(ConfigurationError, match=said):
        resolve_device(name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda() -> None:
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 0)
    assert torch.cuda.get_device_name(0) in describe_device(torch.device("cuda", 0))


def pretend(monkeypatch: pytest.MonkeyPatch, **counts: int) -> None:
    """Let each kind of device report a number of devices, 0 for the kinds left out."""
    for kind in kinds.KINDS[:-1]:
        count = counts.get(kind.kind, 0)
        presence = Presence(count, "" if count else f"there is no {kind.kind}")
        monkeypatch.setattr(kind, "look", lambda presence=presence: presence)


@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind is not kinds.DirectML])
def test_auto_takes_the_first_kind_and_says_why(
    kind: type[Accelerator], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, **{kind.kind: 2})
    with caplog.at_level(logging.INFO):
        assert resolve_device("auto") == kind.at(None)
    (line,) = caplog.messages
    assert line.startswith(f"device: {kind.kind} (")
    assert "\n" not in line
    position = kinds.KINDS.index(kind)
    for earlier in kinds.KINDS[:position]:
        assert f"{earlier.kind}: there is no {earlier.kind}" in line
    later = ", ".join(other.kind for other in kinds.KINDS[position + 1 :])
    assert not later or f"{later}: {kind.kind} comes first" in line


def test_auto_looks_no_further_than_the_first_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, xpu=1)
    monkeypatch.delattr(kinds.DirectML, "look")  # looking would fail
    monkeypatch.setattr(Accelerator, "look", lambda: pytest.fail("it looked further"))
    assert resolve_device("auto") == torch.device("xpu", 0)


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu", "mps"])
def test_an_index_selects_a_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **{kind: 2})
    torch_name = "cuda" if kind == "rocm" else kind
    assert resolve_device(kind) == resolve_device(f"{kind}:0") == torch.device(torch_name, 0)
    assert resolve_device(f"{kind}:1") == torch.device(torch_name, 1)
    for index in ("2", "-1", "first", ""):
        with pytest.raises(ConfigurationError) as refusal:
            resolve_device(f"{kind}:{index}")
        assert str(refusal.value) == (
            f"device={kind}:{index} is not available: {kind} has the indices 0 to 1; "
            f"this machine has: auto, {kind}:0, {kind}:1, cpu"
        )


def test_rocm_is_refused_by_a_build_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigurationError, match=r"device=rocm .* is built for CUDA") as refusal:
        resolve_device("rocm")
    assert str(refusal.value).endswith("this machine has: auto, cuda:0, cpu")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("CUDA initialization: The driver is too old (found\nversion 11040). Please update", True),
        ("", False),
    ],
)
def test_a_driver_that_does_not_start_is_passed_over(
    said: str, cause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML counts the devices of a driver that is too old for CUDA."""

    def is_available() -> bool:
        if said:
            warnings.warn(said, stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_device("auto").type != "cuda"
    reason = f"its driver does not start with this torch, {torch.__version__}"
    if cause:
        reason += ": CUDA initialization: The driver is too old (found version 11040)"
    assert kinds.Cuda.look() == Presence(0, reason)


def test_a_build_for_rocm_has_two_names_for_amd(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.INFO):
        for name in ("auto", "rocm", "rocm:0", "cuda", "cuda:0"):
            assert resolve_device(name) == torch.device("cuda", 0)
    assert re.match(r"device: rocm \(cuda: this torch, .*, is built for ROCm; ", caplog.messages[0])
