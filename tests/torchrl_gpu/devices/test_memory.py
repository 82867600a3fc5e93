from __future__ import annotations

import logging

import psutil
import pytest
import torch

from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
TOTAL = psutil.virtual_memory().total


def _check(count: int, size: int, least: int = 1) -> None:
    check_memory(lambda n: n * size, count, CPU, setting="ships", purpose="the sea", least=least)


def test_a_count_that_fits_is_announced_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _check(3, 1024)
    assert caplog.messages == ["ships=3: the sea needs 3 KiB on cpu"]


def test_a_count_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ConfigurationError, match=r"^ships=2000: .* to spare; ships=\d+ would fit$"):
        _check(2000, TOTAL // 1000)


def test_a_device_without_memory_for_the_least_count_is_said_so() -> None:
    with pytest.raises(ConfigurationError, match="none would fit"):
        _check(3, TOTAL, least=2)
