import signal
import sys
from pathlib import Path

import pytest
import torch

from envs.genesis import simulator_device, start_genesis
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


CATCHES_EVERYTHING = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""


def test_ctrl_c_in_the_import_of_genesis_arrives_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "genesis.py").write_text(CATCHES_EVERYTHING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "genesis", None)  # restores the module that may be there
    monkeypatch.delitem(sys.modules, "genesis")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_genesis(torch.device("cpu"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
