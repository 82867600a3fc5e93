from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.stand_in import missing, stand_in_accelerator

# Folders whose tests share one expensive simulation.
_TOGETHER = (Path(__file__).parent / "envs" / "lift_cube",)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use all cores for whole folders; a few files are faster without starting workers."""
    selects_files = any(".py" in argument for argument in config.args)
    return 0 if selects_files else psutil.cpu_count(logical=False) or 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, since they share its fixtures."""
    for item in items:
        folder = item.path.parent
        item.add_marker(pytest.mark.xdist_group(str(folder if folder in _TOGETHER else item.path)))


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
