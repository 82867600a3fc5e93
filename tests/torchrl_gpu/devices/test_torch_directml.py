"""The installed package torch-directml, on a machine without a DirectML device."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.helpers.program import Call
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.errors import ConfigurationError

PACKAGE = find_spec("torch_directml")

pytestmark = [
    pytest.mark.directml,
    pytest.mark.skipif(PACKAGE is None, reason="torch-directml is not installed"),
    pytest.mark.skipif(
        sys.platform != "linux" or Path("/dev/dxg").exists(), reason="may have a DirectML device"
    ),
]


@pytest.fixture(params=["without its libraries", "with its libraries"])
def _libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package find its own libraries or not: both fail, the latter in native code."""
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    folder = str(Path(PACKAGE.origin).parent) if request.param == "with its libraries" else ""
    monkeypatch.setenv("LD_LIBRARY_PATH", folder)


@pytest.mark.usefixtures("_libraries")
def test_missing_device_ends_in_one_line_that_names_working_devices() -> None:
    with pytest.raises(ConfigurationError, match=r"^device=directml .*cpu"):
        resolve_device("directml")
    # The package stays out of this process, where it could end a later backward pass.
    assert "torch_directml" not in sys.modules
    torch.ones(2, requires_grad=True).sum().backward()


def test_automatic_choice_does_not_ask_the_package() -> None:
    assert resolve_device("auto").type != "privateuseone"
    assert "torch_directml" not in sys.modules


@pytest.mark.usefixtures("_libraries")
def test_program_ends_in_one_line(tmp_path: Path, program: Call) -> None:
    arguments = ["agent=sac", "env=gym", "env.name=Pendulum-v1", "device=directml"]
    assert program(*arguments).refusal().startswith("device=directml ")
    assert not list(tmp_path.iterdir())
