import logging
from types import SimpleNamespace

import psutil
import pytest
import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.devices.memory import (
    check_memory,
    free_memory,
    human_bytes,
    limited_memory,
    memory_limit,
)
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
TOTAL = psutil.virtual_memory().total


GIB = 2**30


def _check(count: int, size: int, minimum: int = 1) -> str:
    return check_memory(
        lambda n: n * size, count, CPU, setting="ships", purpose="the sea", minimum=minimum
    )


def test_a_count_that_fits_returns_a_line_about_its_size() -> None:
    assert _check(3, 1024) == "ships=3: the sea needs 3.00 KiB on cpu"
    line = check_memory(lambda n: n, 2048, CPU, setting="ships of a fleet", purpose="the sea")
    assert line == "2,048 ships of a fleet: the sea needs 2.00 KiB on cpu"


def test_a_count_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ConfigurationError, match=r"^ships=2000: .* to spare; ships=\d+ would fit$"):
        _check(2000, TOTAL // 1000)


def test_a_count_beyond_any_index_is_refused_as_well() -> None:
    with pytest.raises(ConfigurationError, match=r"ships=\d+ would fit$"):
        _check(10**30, GIB // 1024)


def test_a_device_without_memory_for_the_minimum_is_said_so() -> None:
    with pytest.raises(ConfigurationError, match="none would fit"):
        _check(3, TOTAL, minimum=2)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.5, TOTAL // 2),
        ("0.5", TOTAL // 2),
        (1, TOTAL),
        ("512MiB", 2**29),
        ("1.5 GiB", 3 * 2**29),
        ("1gb", 10**9),
        (" 1gb ", 10**9),
    ],
)
def test_a_limit_is_a_fraction_or_an_amount(limit: float | str, expected: int) -> None:
    assert memory_limit(limit, CPU) == expected


@pytest.mark.parametrize(
    "limit", [0, 0.0, True, "0GiB", -1, 1.5, "8", "8 bananas", "8,5GB", "half", "50%"]
)
def test_a_limit_of_zero_or_no_amount_is_refused_with_examples(limit: float | str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^device_memory_limit={limit}: .* 0\.5, .* 8GiB"
    ):
        memory_limit(limit, CPU)


def test_a_limit_above_the_memory_is_refused_with_the_memory() -> None:
    with pytest.raises(ConfigurationError, match=r"^device_memory_limit=900TiB: cpu has only \d+"):
        memory_limit("900TiB", CPU)


def test_a_fraction_needs_a_device_that_reports_its_memory() -> None:
    silent = torch.device("hpu")
    with pytest.raises(ConfigurationError, match="hpu does not report its memory"):
        memory_limit(0.5, silent)
    assert memory_limit("8GiB", silent) == 8 * GIB


def test_a_limit_caps_the_free_memory_within_its_block(caplog: pytest.LogCaptureFixture) -> None:
    used = accelerator_of(CPU).used_memory
    assert used > 0
    with caplog.at_level(logging.INFO), limited_memory(CPU, used + GIB):
        assert 0.9 * GIB < (free_memory(CPU) or 0) <= 1.1 * GIB
        with pytest.raises(ConfigurationError, match="within device_memory_limit="):
            _check(2, GIB)
    assert (free_memory(CPU) or 0) > 1.1 * GIB or TOTAL < 2 * GIB
    assert "not enforced by torch" in caplog.text


def test_a_silent_device_has_the_memory_of_its_limit() -> None:
    silent = torch.device("hpu")
    assert free_memory(silent) is None
    with limited_memory(silent, GIB):
        assert free_memory(silent) == GIB


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_torch_enforces_a_limit_within_the_block(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, fractions = torch.device(kind, 1), []

    def enforce(fraction: float, device: torch.device) -> None:
        fractions.append((fraction, device))

    module = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(total_memory=8 * GIB),
        mem_get_info=lambda device: (6 * GIB, 8 * GIB),
        memory_reserved=lambda device: GIB,
        set_per_process_memory_fraction=enforce,
    )
    monkeypatch.setattr(torch, kind, module)
    with limited_memory(device, 4 * GIB):
        assert fractions == [(0.5, device)]
        assert free_memory(device) == 3 * GIB
        assert free_memory(torch.device(kind, 0)) == 6 * GIB
    assert fractions[1:] == [(1.0, device)]


def test_mps_takes_a_limit_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[float] = []
    module = SimpleNamespace(
        recommended_max_memory=lambda: 8 * GIB,
        driver_allocated_memory=lambda: GIB,
        set_per_process_memory_fraction=fractions.append,
    )
    monkeypatch.setattr(torch, "mps", module)
    with limited_memory(torch.device("mps:0"), 2 * GIB):
        assert free_memory(torch.device("mps:0")) == GIB
    assert fractions == [0.25, 1.0]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (500e6, "476.84 MiB")]
)
def test_human_bytes(size: float, text: str) -> None:
    assert human_bytes(size) == text
