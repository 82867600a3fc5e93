from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil
import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.helpers.programs import Start, programs
from tests.stand_in import missing, stand_in_accelerator

# Folders whose tests share one expensive simulation.
_TOGETHER = ("tests/envs/lift_cube",)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use all cores for whole folders; a few files are faster without starting workers."""
    selects_files = any(".py" in argument for argument in config.args)
    return 0 if selects_files else psutil.cpu_count(logical=False) or 1


class _ByFile(LoadScopeScheduling):
    """Keeps the tests of a file, or of some folders, in one process: they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return str(file.parent if str(file.parent) in _TOGETHER else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    """Distribute the tests over the processes."""
    return _ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small networks gain nothing from several threads, and lose much where cores are shared."""
    torch.set_num_threads(1)


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The stand-in accelerator: see tests/stand_in. A parameter states its abilities."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with stand_in_accelerator(getattr(request, "param", None)) as device:
        yield device


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program, or another function, in a process and session of its own."""
    with programs(tmp_path) as begin:
        yield begin
