"""DirectML: torch-directml is a stand-in of a few lines that the child process imports too."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrl_gpu.devices.accelerator import Presence
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.directml import DIRECTML_TORCH, probe_directml
from torchrl_gpu.devices.kinds import DirectML
from torchrl_gpu.errors import ConfigurationError

# A package with two devices that are the CPU.
WORKING = """
import torch
def is_available(): return True
def device_count(): return 2
def device(index=None): return torch.device("cpu", index or 0)
"""

FAILURES = {
    "raise OSError('libd3d12.so: no such file')": "failed: OSError: libd3d12.so: no such file",
    "raise RuntimeError('no adapter')": "failed: RuntimeError: no adapter",
    "import no_such_module": "failed: ModuleNotFoundError: No module named",
    "import os; os._exit(99)": "its process ended with code 99",
}
if os.name != "nt":
    FAILURES["import os; os.abort()"] = "its process was ended by SIGABRT"

Install = Callable[[str], None]


@pytest.fixture(autouse=True)
def not_probed() -> Iterator[None]:
    probe_directml.cache_clear()
    yield
    probe_directml.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package torch_directml of one file."""

    def write(code: str) -> None:
        (tmp_path / "torch_directml.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the child process
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torch_directml", raising=False)
        monkeypatch.setattr(torch, "__version__", f"{DIRECTML_TORCH}+cpu")
        importlib.invalidate_caches()

    return write


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize("code", FAILURES)
def test_every_failure_of_the_package_is_a_reason(code: str, install: Install) -> None:
    install(code)
    count, reason = probe_directml()
    assert count == 0
    assert FAILURES[code] in reason
    assert "\n" not in reason


def test_a_package_that_hangs_is_given_up(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("import time; time.sleep(60)")
    monkeypatch.setattr("torchrl_gpu.devices.directml._SECONDS", 0.1)
    assert probe_directml() == (0, "torch-directml did not answer within 0.1 s")


def test_a_process_that_does_not_start_is_a_reason(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(WORKING)
    monkeypatch.setattr(sys, "executable", "/there/is/no/python")
    assert "could not be started" in probe_directml().reason


@pytest.mark.usefixtures("no_process")
def test_no_process_starts_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert probe_directml() == (0, "torch-directml is not installed")


@pytest.mark.usefixtures("no_process")
def test_another_torch_is_refused_without_a_process(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(WORKING)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    with pytest.raises(ConfigurationError, match=r"needs torch 2\.4\.1 and finds 2\.13\.0\+cpu"):
        resolve_device("directml")


def test_devices_that_compute_are_counted_once(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(WORKING)
    assert probe_directml() == (2, "")
    monkeypatch.setattr(sys, "executable", "/there/is/no/python")
    assert probe_directml() == (2, "")


def test_a_device_is_returned_by_its_index(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(WORKING.replace('"cpu", index or 0', '"meta", 1 if index is None else index'))
    monkeypatch.setattr(DirectML, "look", lambda: Presence(2))
    # Without an index, the package chooses.
    indices = [resolve_device(name).index for name in ("directml", "directml:0", "directml:1")]
    assert indices == [1, 0, 1]
    with pytest.raises(ConfigurationError, match=r"has the indices 0 to 1; .* directml:1, cpu$"):
        resolve_device("directml:2")
