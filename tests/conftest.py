from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.stand_in import missing, stand_in_accelerator


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small networks gain nothing from several threads, and lose much where cores are shared."""
    torch.set_num_threads(1)


@pytest.fixture
def accelerator() -> Iterator[torch.device]:
    """The stand-in accelerator: see tests/stand_in."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with stand_in_accelerator() as device:
        yield device
