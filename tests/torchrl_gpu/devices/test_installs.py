"""Commands that install a kind of device: the same in the code, the docs and the script."""

import re
from pathlib import Path

import pytest

from torchrl_gpu.devices import kinds

ROOT = Path(__file__).parents[3]
COMMANDS = sorted({command for kind in kinds.KINDS for command in kind.installs.values()})


def test_every_accelerator_can_be_installed_somewhere() -> None:
    assert all(kind.installs for kind in kinds.KINDS if kind is not kinds.Cpu)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_installs_a_torch_that_this_project_takes(command: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    if found := re.search(r"torch(?:\[[\w-]+\])?<([\d.]+)", command):
        assert f'"torch>=2.4.1,<{found[1]}"' in project
    else:
        assert command.startswith("pip install torch-directml==")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_and_the_script_know_the_command(command: str) -> None:
    page = (ROOT / "docs" / "devices.md").read_text()
    script = (ROOT / "docs" / "windows" / "setup.ps1").read_text()
    (requirement,) = re.findall(r"pip install (?:--force-reinstall )?\"?([^ \"]+)", command)
    assert requirement in page
    assert f"'{requirement}'" in script
    if found := re.search(r"--index-url (\S+)", command):
        assert found[1] in page
        index = found[1].replace("https://download.pytorch.org/whl", "$PyTorch")
        assert index in script
