import itertools
import logging
import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.devices.seeding import (
    Stream,
    check_rng_state,
    rng_state,
    seed_everything,
    set_rng_state,
    stream_seed,
)

pytestmark = pytest.mark.directml

DEVICES = [torch.device("cpu")]
if torch.cuda.is_available():
    DEVICES.append(torch.device("cuda"))
devices = pytest.mark.parametrize("device", DEVICES, ids=str)


def draw(device: torch.device) -> list[object]:
    """Draw from every generator; normal draws come in pairs, the second of which is cached."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.randn(3).tolist(),
        torch.rand((), device=device).item(),
    ]


@devices
def test_equal_seeds_give_equal_numbers(device: torch.device) -> None:
    seed_everything(7)
    first = draw(device)
    second = draw(device)
    seed_everything(7)
    assert draw(device) == first
    assert draw(device) == second
    seed_everything(8)
    assert all(a != b for a, b in zip(draw(device), first, strict=True))


@devices
def test_generators_are_restored_from_a_file(device: torch.device, tmp_path: Path) -> None:
    seed_everything(3)
    draw(device)
    path = tmp_path / "random.safetensors"
    save_state(path, rng_state(device))
    expected = [draw(device) for _ in range(3)]
    seed_everything(4)
    set_rng_state(load_state(path), device)
    assert [draw(device) for _ in range(3)] == expected


def test_reading_the_state_does_not_advance_generators() -> None:
    cpu = torch.device("cpu")
    seed_everything(3)
    expected = draw(cpu)
    seed_everything(3)
    rng_state(cpu)
    assert draw(cpu) == expected


@pytest.mark.parametrize(
    ("generator", "name", "value"),
    [
        ("numpy", "pos", 625),  # NumPy would read beyond its key
        ("numpy", "pos", -1),
        ("numpy", "key", [0] * 10),
        ("python", None, (0,) * 10),
        ("torch", None, torch.zeros(5056, dtype=torch.uint8)),
    ],
)
def test_an_impossible_state_is_refused_before_any_generator_changes(
    generator: str, name: Any, value: Any
) -> None:
    device = DEVICES[0]
    before, state = rng_state(device), rng_state(device)
    if generator == "numpy":
        state["numpy"]["state"][name] = value
    elif generator == "python":
        state["python"] = (3, value, None)
    else:
        state["torch"] = value
    with pytest.raises((ValueError, TypeError, RuntimeError, LookupError)):
        check_rng_state(state, device)
    check_rng_state(before, device)
    assert str(rng_state(device)) == str(before)


class _Backend:
    """Stands in for `torch.xpu` or `torch.mps` and records its arguments."""

    def __init__(self) -> None:
        self.state = torch.tensor([1, 2, 3], dtype=torch.uint8)
        self.devices: list[object] = []

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        self.devices.append(device)
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        self.devices.append(device)
        self.state = state


@pytest.mark.parametrize("name", ["xpu", "mps"])
def test_the_generator_of_another_accelerator_is_restored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _Backend()
    monkeypatch.setattr(torch, name, backend)
    device = torch.device(name)
    state = rng_state(device)
    backend.state = torch.zeros(3, dtype=torch.uint8)
    set_rng_state(state, device)
    assert backend.state.tolist() == [1, 2, 3]
    assert backend.devices == [device] * 2


def test_a_state_of_another_kind_of_device_restores_the_host_generators(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = torch.device("cpu")
    seed_everything(3)
    state = rng_state(cpu)
    expected = draw(cpu)
    backend = _Backend()
    monkeypatch.setattr(torch, "xpu", backend)
    with caplog.at_level(logging.WARNING):
        set_rng_state(state, torch.device("xpu"))
    assert "no random state of xpu" in caplog.text
    assert backend.state.tolist() == [1, 2, 3]
    assert draw(cpu) == expected
    set_rng_state({**state, "xpu": backend.state}, cpu)
    assert draw(cpu) == expected


def test_streams_share_no_seed_for_any_run() -> None:
    """Each stream covers a large batch whose environment i is seeded with seed + i."""
    batch = 16_384
    firsts = {
        stream: sorted(stream_seed(seed, stream, frames) for seed in range(20) for frames in (0, 9))
        for stream in get_args(Stream)
    }
    seeds = [(first, stream) for stream, of_stream in firsts.items() for first in of_stream]
    for (first, stream), (second, other) in itertools.combinations(sorted(seeds), 2):
        assert second > first
        assert stream == other or second >= first + batch
    assert all(0 <= first < 2**31 - batch for first, _ in seeds)


def test_stream_seeds_are_reproducible_and_depend_on_the_position() -> None:
    assert stream_seed(3, "training") == stream_seed(3, "training", 0)
    seeds = {stream_seed(seed, "training", frames) for seed in (0, 1) for frames in (0, 64, 10**10)}
    assert len(seeds) == 6


def test_every_rank_draws_other_numbers_and_rank_0_those_of_a_single_process() -> None:
    seeds = [stream_seed(5, "training", 100, rank) for rank in range(8)]
    assert seeds[0] == stream_seed(5, "training", 100)
    assert len(set(seeds)) == 8
    draws = []
    for arguments in [(5,), (5, 0), (5, 1), (5, 2)]:
        seed_everything(*arguments)
        draws.append(draw(torch.device("cpu")))
    assert draws[0] == draws[1]
    assert draws[1] != draws[2] != draws[3]
