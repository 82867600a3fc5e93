import pytest
import torch

from envs.genesis import simulator_device
from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator

BACKENDS = {"cuda": "cuda", "rocm": "amdgpu", "xpu": "cpu", "mps": "metal", "cpu": "cpu"}


@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind.kind in BACKENDS])
def test_the_simulator_follows_the_device(
    kind: type[Accelerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2" if kind is kinds.Rocm else None)
    device = kind.at(0)
    simulates_there = BACKENDS[kind.kind] != "cpu"
    assert kind.genesis_backend == BACKENDS[kind.kind]
    assert simulator_device(device) == (device if simulates_there else torch.device("cpu"))


def test_directml_simulates_on_the_cpu() -> None:
    assert kinds.DirectML.genesis_backend == "cpu"
