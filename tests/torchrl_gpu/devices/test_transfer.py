from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.stand_in import count_host_reads
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.devices.transfer import PackedTransfer

CPU = torch.device("cpu")


def step(seed: int, num_envs: int = 3) -> TensorDict:
    """Return values of many dtypes, in sizes that need padding."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(num_envs, *shape, generator=generator)

    return TensorDict(
        {
            "observation": draw(5),
            "transposed": draw(2, 4).transpose(1, 2),
            "next": {
                "pixels": (draw(3, 7, 7) * 50).to(torch.uint8),
                "done": draw(1) > 0,
                "steps": (draw() * 1e6).long(),
                "halves": draw(1).half(),
            },
        },
        batch_size=[num_envs],
    )


def assert_same(result: TensorDict, expected: TensorDict) -> None:
    assert set(result.keys(True, True)) == set(expected.keys(True, True))
    assert result.batch_size == result["next"].batch_size == expected.batch_size
    for key, value in expected.items(include_nested=True, leaves_only=True):
        assert result[key].dtype == value.dtype, key
        assert torch.equal(result[key], value), key


def test_a_transfer_to_the_device_is_one_copy(accelerator: torch.device) -> None:
    to_device = PackedTransfer(accelerator)
    for seed in range(4):
        with count_host_reads() as counter:
            result = to_device(step(seed))
        assert (counter.copies_to_device, counter.host_reads) == (1, 0), counter.report()
        assert result.device == result["next", "pixels"].device == accelerator
        assert_same(result.cpu(), step(seed))


def test_a_transfer_to_the_host_is_one_copy(accelerator: torch.device) -> None:
    to_host = PackedTransfer(CPU)
    for seed in range(4):
        on_device = step(seed).to(accelerator)
        with count_host_reads() as counter:
            result = to_host(on_device)
        assert (counter.copies_to_host, counter.host_reads, counter.copies) == (1, 1, 1)
        assert result.device == CPU
        result["observation"].numpy()
        assert_same(result, step(seed))


def test_a_transfer_counts_its_copies_and_bytes(accelerator: torch.device) -> None:
    to_device = PackedTransfer(accelerator)
    sizes = [leaf.nbytes for leaf in step(0).values(True, True)]
    assert (to_device.copies, to_device.bytes) == (0, 0)
    for number in range(1, 3):
        to_device(step(0))
        assert to_device.copies == number
        assert number * sum(sizes) <= to_device.bytes <= number * (sum(sizes) + 64 * len(sizes))
    on_device = step(0).to(accelerator)
    to_device(on_device)
    assert to_device.copies == 2, "a TensorDict on the destination takes no copy"


def test_a_device_without_byte_views_takes_one_copy_for_each_dtype(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(accelerator_of(accelerator)), "byte_views", False)
    to_device, to_host = PackedTransfer(accelerator), PackedTransfer(CPU)
    dtypes = len({leaf.dtype for leaf in step(0).values(True, True)})
    for seed in range(4):
        with count_host_reads() as counter:
            arrived = to_device(step(seed))
            assert_same(to_host(arrived), step(seed))
        assert (counter.copies_to_device, counter.copies_to_host) == (dtypes, dtypes)
    assert (to_device.copies, to_host.copies) == (4 * dtypes, 4 * dtypes)


def test_a_result_is_valid_until_the_call_after_the_next(accelerator: torch.device) -> None:
    to_device = PackedTransfer(accelerator)
    first = to_device(step(0))
    second = to_device(step(1))
    assert_same(first.cpu(), step(0))
    to_device(step(2))
    assert_same(second.cpu(), step(1))
    assert_same(first.cpu(), step(2))  # the buffer is reused


def test_keys_added_to_a_result_are_not_in_later_results(accelerator: torch.device) -> None:
    to_device = PackedTransfer(accelerator)
    to_device(step(0)).set("action", torch.zeros(3, 2, device=accelerator))
    to_device(step(1))
    assert_same(to_device(step(2)).cpu(), step(2))


def test_results_do_not_require_gradients(accelerator: torch.device) -> None:
    to_host = PackedTransfer(CPU)
    action = torch.ones(3, 2, device=accelerator, requires_grad=True) * 2
    for _ in range(3):
        result = to_host(TensorDict({"action": action}, batch_size=[3]))
        assert not result["action"].requires_grad


def test_a_tensordict_on_the_destination_is_returned_unchanged() -> None:
    given = step(0)
    assert PackedTransfer(CPU)(given) is given


def test_another_layout_is_rejected_by_key(accelerator: torch.device) -> None:
    to_device = PackedTransfer(accelerator)
    to_device(step(0))
    with pytest.raises(ValueError, match=r"done.* torch.bool \[3, 1\] then, .*\[4, 1\] now"):
        to_device(step(0, num_envs=4))
    with pytest.raises(ValueError, match=r"^observation .* torch.float32 .* torch.float64"):
        to_device(step(0).set("observation", torch.zeros(3, 5, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"^\('next', 'done'\) .* missing now"):
        to_device(step(0).exclude(("next", "done")))
    with pytest.raises(ValueError, match=r"^extra .* missing then"):
        to_device(step(0).set("extra", torch.zeros(3)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_buffer_is_reused_only_after_cuda_has_read_it() -> None:
    to_device = PackedTransfer(torch.device("cuda"))
    sums = []
    for value in range(50):
        torch.cuda._sleep(1_000_000)  # delays the copy, but not the host
        given = TensorDict({"observation": torch.full((2**20,), float(value))}, batch_size=[])
        sums.append(to_device(given)["observation"].mean())
    assert torch.stack(sums).tolist() == list(range(50))


class _Event:
    """Stands in for `torch.cuda.Event` and stores the streams that it was recorded on."""

    made: ClassVar[list[_Event]] = []

    def __init__(self) -> None:
        self.streams: list[str | None] = []
        self.waits = 0
        self.made.append(self)

    def record(self, stream: str | None = None) -> None:
        self.streams.append(stream)

    def synchronize(self) -> None:
        self.waits += 1


def test_the_event_is_recorded_on_the_stream_of_the_copy(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination is a fake second device, while the first is the current one."""
    module = torch.get_device_module(accelerator)
    monkeypatch.setattr(_Event, "made", [])
    monkeypatch.setattr(module, "Event", _Event, raising=False)
    monkeypatch.setattr(module, "current_stream", lambda d: f"stream of {d}", raising=False)
    monkeypatch.setattr(Accelerator, "pinned_transfers", True)
    second = torch.device(accelerator.type, 1)
    with FakeTensorMode():
        to_device = PackedTransfer(second)
        for _ in range(4):
            assert to_device(step(0))["observation"].device == second
    assert [event.streams for event in _Event.made] == [[f"stream of {second}"] * 2] * 2
    assert [event.waits for event in _Event.made] == [2, 2]
