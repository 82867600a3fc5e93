from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.stand_in import missing, stand_in_accelerator


@pytest.fixture
def accelerator() -> Iterator[torch.device]:
    """The stand-in accelerator: see tests/stand_in."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with stand_in_accelerator() as device:
        yield device
