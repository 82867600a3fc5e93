from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.errors import ConfigurationError

HAS_NO_ACCELERATOR = not (
    torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
)


def test_cpu() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    description = describe_device(torch.device("cpu"))
    assert re.fullmatch(rf"cpu, {os.cpu_count()} cores, \d+ GiB", description)


def test_auto_returns_a_working_device() -> None:
    device = resolve_device("auto")
    assert torch.ones(2, device=device).sum().item() == 2.0
    assert (device.type == "cpu") == HAS_NO_ACCELERATOR
    assert "\n" not in describe_device(device)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:99", "cpu:1", "cuda:first", "npu"])
def test_an_unavailable_device_is_rejected_in_one_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"this machine has: auto, .*cpu$") as refusal:
        resolve_device(name)
    message = str(refusal.value)
    assert message.startswith(f"device={name} ")
    assert "\n" not in message


@pytest.mark.skipif(not HAS_NO_ACCELERATOR, reason="this machine has an accelerator")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "xpu", "mps"])
def test_an_accelerator_is_rejected_on_a_machine_without_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"device={name} .* has: auto, cpu$"):
        resolve_device(name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda() -> None:
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 0)
    assert torch.cuda.get_device_name(0) in describe_device(torch.device("cuda", 0))


def test_directml_is_probed_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_directml.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"device=directml .*exit code.* has: auto, .*cpu"):
        resolve_device("directml")


def test_an_available_directml_device_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_directml.py").write_text(
        "import torch\ndef is_available(): return True\ndef device(): return torch.device('cpu')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = SimpleNamespace(device=lambda: torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "torch_directml", package)
    assert resolve_device("directml") == torch.device("cpu")
