import pytest
import torch

from envs.genesis import simulator_device
from torchrl_gpu.devices import kinds
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.errors import ConfigurationError

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
    if simulates_there and kind is not kinds.Mps:
        with pytest.raises(ConfigurationError, match=r"^device=cuda:1: .*HIP_VISIBLE_DEVICES=1"):
            simulator_device(kind.at(1))


def test_directml_simulates_on_the_cpu() -> None:
    assert kinds.DirectML.genesis_backend == "cpu"
