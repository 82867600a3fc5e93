"""Scripts that ask for cuda, unmodified."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
import torch

from torchrl_gpu import redirect_cuda

SCRIPTS = Path(__file__).with_name("scripts")

needs_sb3 = pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="the extra `benchmark` is not installed",
)


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU")
@pytest.mark.parametrize(
    "command",
    [
        ["ppo.py"],
        pytest.param(["sb3.py", "PPO"], marks=needs_sb3),
        pytest.param(["sb3.py", "DQN"], marks=needs_sb3),
        pytest.param(["sb3.py", "SAC"], marks=needs_sb3),
    ],
    ids=" ".join,
)
def test_a_script_trains_saves_and_loads_on_the_target(
    command: list[str], target: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = str(SCRIPTS / command[0])
    monkeypatch.setattr(sys, "argv", [script, *command[1:], str(tmp_path)])
    with redirect_cuda(target):
        names = runpy.run_path(script, run_name="__main__")
    assert names["DEVICE"] == target
