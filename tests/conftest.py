import gc
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.helpers.program import Call, Ended, call
from tests.helpers.programs import Start, programs
from tests.stand_in import missing, stand_in_accelerator

# Tests that Genesis serves, which takes long to start and to compile its kernels: in one process.
_WITH_GENESIS = (
    *("tests/envs/fanuc/test_genesis.py", "tests/envs/lift_cube/", "tests/trainers/test_robot.py"),
    "tests/trainers/evaluation/test_every_closing_evaluation.py",
)

# Seconds of the files that take long; a test of the others takes 0.2 s on average.
_SECONDS = {
    "Genesis": 200,
    "tests/trainers/test_ranks.py": 40,
    "tests/trainers/test_signals.py": 40,
    "tests/trainers/exporting/test_program.py": 40,
    "tests/envs/fanuc/test_worker_pool.py": 40,
    "tests/trainers/training/test_watchdog.py": 30,
    "tests/test_every_accelerator.py": 30,
    "tests/trainers/training/test_resume.py": 30,
    "tests/test_examples.py": 30,
    "tests/trainers/collecting/test_ray.py": 25,
    "tests/test_extending.py": 25,
    "tests/trainers/exporting/test_every_export.py": 20,
    "tests/trainers/runs/test_damaged_files.py": 20,
    "tests/trainers/exporting/test_page.py": 20,
    "tests/torchrl_gpu/test_distributed.py": 15,
}


def pytest_configure(config: pytest.Config) -> None:
    # pyproject.toml leaves slow tests out; those that the command line names run.
    if any("::" in name for name in config.args) and config.option.markexpr == "not slow":
        config.option.markexpr = ""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use all cores for whole folders; a few files are faster without starting workers."""
    selects_files = any(".py" in argument for argument in config.args)
    return 0 if selects_files else psutil.cpu_count(logical=False) or 1


def _scope(nodeid: str) -> str:
    return "Genesis" if nodeid.startswith(_WITH_GENESIS) else nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes longest first, so that all processes end at the same time."""
    counts = Counter(_scope(item.nodeid) for item in items)
    seconds = {scope: _SECONDS.get(scope, 0.2 * count) for scope, count in counts.items()}
    items.sort(key=lambda item: -seconds[_scope(item.nodeid)])


def pytest_collection_finish() -> None:
    """Leave what has been imported out of the collections of garbage: a tenth of all time."""
    gc.collect()
    gc.freeze()


class _ByFile(LoadScopeScheduling):
    """Keeps the tests of a file in one process, and those with Genesis: they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    """Distribute the tests over the processes, in the order of their collection."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small networks gain nothing from several threads, and lose much where cores are shared."""
    torch.set_num_threads(1)


def _seed() -> None:
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let the draws of module fixtures not depend on earlier tests."""
    _seed()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Let the draws of a test not depend on those fixtures, which only the first test builds."""
    _seed()


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No test needs its files after a failure of power; an invalid descriptor is still an error."""
    with mock.patch.object(os, "fsync", os.fstat):
        yield


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The stand-in accelerator: see tests/stand_in. A parameter states its abilities."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with stand_in_accelerator(getattr(request, "param", None)) as device:
        yield device


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Runs the command line program in the folder of the test, or in another one."""

    def typed(*arguments: str, folder: Path = tmp_path) -> Ended:
        capfd.readouterr()
        code = call(monkeypatch, folder, *arguments)
        return Ended(code, *capfd.readouterr())

    return typed


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program, or another function, in a process and session of its own."""
    with programs(tmp_path) as begin:
        yield begin
