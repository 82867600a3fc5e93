import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stand_in import (
    MAKERS,
    Abilities,
    count_host_reads,
    count_reads_of_cpu_tensors,
    missing,
    stand_in_accelerator,
)
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.kinds import accelerator_of, available_devices

Operation = Callable[[Tensor], object]

needs_stand_in = pytest.mark.skipif(missing() is not None, reason=str(missing()))

READS: dict[str, Operation] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "format": lambda x: f"{x.sum()}",
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "where without values": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "allclose": lambda x: torch.allclose(x, x),
    "equal": lambda x: torch.equal(x, x),
    "cpu": lambda x: x.cpu(),
    "copy to a host tensor": lambda x: torch.empty(3, 3).copy_(x),
    "normal with a tensor std": lambda x: torch.normal(x, x),
    "categorical sample": lambda x: torch.multinomial(x, 1),
    "repeat by a tensor": lambda x: x.repeat_interleave(x[0].long(), 0),
    "synchronize": lambda x: torch.get_device_module(x.device).synchronize(),
}

STAYS: dict[str, Operation] = {
    "matmul": lambda x: x @ x.mT + x,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "index_select": lambda x: x.index_select(0, torch.arange(2, device=x.device)),
    "index": lambda x: x[torch.arange(2, device=x.device)],
    "index_put": lambda x: x.index_put_((torch.arange(3, device=x.device),), x + 1.0),
    "masked fill": lambda x: x.__setitem__(x > 0, 2.0),
    "randint": lambda x: torch.randint(5, (4,), device=x.device),
    "normal": lambda x: torch.normal(0.0, 1.0, (4,), device=x.device),
    "randn_like": lambda x: torch.randn_like(x),
    "cumsum": lambda x: x.cumsum(0),
    "factories": lambda x: (torch.eye(3, device=x.device), torch.zeros(3, device=x.device)),
    "view as bytes": lambda x: x.view(torch.uint8)[:, 4:8].view(torch.float32),
    "deepcopy": lambda x: copy.deepcopy(x),
    "shapes": lambda x: (len(x), x.numel(), list(x.unbind(0))),
    "scalar of the host": lambda x: x + torch.tensor(1.0),
}


@pytest.mark.parametrize("operation", READS.values(), ids=READS)
def test_host_reads_are_counted_by_line(operation: Operation, accelerator: torch.device) -> None:
    x = torch.ones(3, 3, device=accelerator)
    with count_host_reads() as counter:
        operation(x)
    assert counter.host_reads == 1, counter.report()
    assert f"{Path(__file__)}:" in counter.report()


@pytest.mark.parametrize("name", sorted(READS.keys() - {"copy to a host tensor", "synchronize"}))
def test_host_reads_of_tensors_of_the_cpu_are_counted_by_line(name: str) -> None:
    x = torch.ones(3, 3)
    with count_reads_of_cpu_tensors() as counter:
        READS[name](x)
    assert counter.host_reads == 1, counter.report()
    assert f"{Path(__file__)}:" in counter.report()


@pytest.mark.parametrize("operation", STAYS.values(), ids=STAYS)
def test_operations_on_the_cpu_are_not_counted(operation: Operation) -> None:
    x = torch.ones(3, 3)
    with count_reads_of_cpu_tensors() as counter:
        operation(x)
    assert counter.host_reads == counter.copies == 0, counter.report()


def test_numbers_that_go_to_a_device_are_counted() -> None:
    with count_reads_of_cpu_tensors() as counter:
        x = torch.tensor([1.0, 2.0], device="cpu")
        torch.as_tensor([0], device=x.device)
        torch.as_tensor(x, device=x.device)
    assert (counter.copies_to_device, counter.host_reads) == (2, 0), counter.report()


@pytest.mark.parametrize("operation", STAYS.values(), ids=STAYS)
def test_device_operations_are_not_counted(operation: Operation, accelerator: torch.device) -> None:
    x = torch.ones(3, 3, device=accelerator)
    with count_host_reads() as counter:
        operation(x)
    assert counter.host_reads == counter.copies == 0, counter.report()


def test_copies_are_counted_in_each_direction(accelerator: torch.device) -> None:
    host = torch.arange(6.0).reshape(2, 3)
    with count_host_reads() as counter:
        device = host.to(accelerator)
        torch.tensor([1.0, 2.0], device=accelerator)
        device.copy_(host)
        device[torch.tensor([0, 1])]
        back = device.to("cpu", torch.float64)
    assert (counter.copies_to_device, counter.copies_to_host) == (4, 1), counter.report()
    assert torch.equal(back.float(), host)


def test_mixed_devices_and_numpy_raise_errors(accelerator: torch.device) -> None:
    host, device = torch.ones(3), torch.ones(3, device=accelerator)
    for operation in (
        lambda: host + device,
        lambda: torch.cat((host, device)),
        lambda: torch.where(host > 0, device, device),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            operation()
    with pytest.raises(TypeError, match="NumPy"):
        device.numpy()


def test_nested_counters_count_independently(accelerator: torch.device) -> None:
    x = torch.ones(3, device=accelerator)
    with count_host_reads() as outer:
        x.cpu()
        with count_host_reads() as inner:
            x.sum().item()
    x.cpu()
    assert (outer.host_reads, inner.host_reads) == (2, 1)
    assert (outer.copies, inner.copies) == (1, 0)


@needs_stand_in
def test_the_device_leaves_no_trace_for_other_tests() -> None:
    def gradient(device: torch.device | str) -> Tensor:
        x = torch.ones(2, device=device, requires_grad=True)
        (3.0 * x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    before = gradient("cpu")
    for _ in range(2):
        with stand_in_accelerator() as device:
            assert torch.equal(gradient(device), before)
        assert torch.equal(gradient("cpu"), before)
        assert not torch.accelerator.is_available() or torch.cuda.is_available()
        assert not torch.__future__.get_swap_module_params_on_conversion()


@needs_stand_in
@pytest.mark.parametrize("maker", MAKERS)
def test_the_record_states_the_abilities_of_the_device(maker: str) -> None:
    abilities = MAKERS[maker]
    with stand_in_accelerator(abilities) as device:
        record = accelerator_of(device)
        assert resolve_device("npu") == device
        assert str(device) in available_devices()
        assert record.float64 == abilities.float64
        assert record.fused_adam == abilities.fused_adam
        assert record.pinned_transfers == abilities.pinned_memory
        assert record.has_generator == abilities.generator
    assert "npu:0" not in available_devices()


@needs_stand_in
@pytest.mark.parametrize(
    "operation",
    [
        lambda device: torch.zeros(2, dtype=torch.float64, device=device),
        lambda device: torch.zeros(2, dtype=torch.float64).to(device),
        lambda device: torch.zeros(2, device=device).double(),
        lambda device: torch.zeros(2, dtype=torch.int64, device=device).to(torch.float64),
    ],
)
def test_a_device_without_float64_refuses_it(operation: Callable[[torch.device], object]) -> None:
    with stand_in_accelerator(Abilities(float64=False)) as device:
        with pytest.raises(TypeError, match="float64"):
            operation(device)
        assert torch.zeros(2, dtype=torch.float64).to(device, torch.float32).device == device
        assert (torch.zeros(2, device=device) + 1.0).dtype == torch.float32
    with stand_in_accelerator() as device:
        operation(device)


@needs_stand_in
def test_fused_adam_needs_the_ability() -> None:
    for fused_adam in (True, False):
        with stand_in_accelerator(Abilities(fused_adam=fused_adam)) as device:
            network = nn.Linear(2, 1, device=device)
            network(torch.ones(1, 2, device=device)).sum().backward()
            optimizer = torch.optim.Adam(network.parameters(), fused=True)
            if fused_adam:
                optimizer.step()
            else:
                with pytest.raises(NotImplementedError, match="_fused_adam_"):
                    optimizer.step()


@needs_stand_in
def test_the_generator_is_apart_from_that_of_the_host() -> None:
    with stand_in_accelerator() as device:
        torch.manual_seed(3)
        before = torch.get_rng_state(), accelerator_of(device).call("get_rng_state")
        drawn = torch.rand(5, device=device)
        assert torch.equal(torch.get_rng_state(), before[0])
        accelerator_of(device).call("set_rng_state", before[1])
        assert torch.equal(torch.rand(5, device=device).cpu(), drawn.cpu())
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(5, device=device, generator=torch.Generator())
    with stand_in_accelerator(Abilities(generator=False)) as device:
        drawn = torch.rand(5, device=device)
        torch.manual_seed(0)
        assert not torch.equal(torch.rand(5, device=device).cpu(), drawn.cpu())
        assert not hasattr(torch.get_device_module(device), "get_rng_state")


@needs_stand_in
def test_pinned_memory_has_to_be_left_alone_until_the_device_has_read_it() -> None:
    with stand_in_accelerator(Abilities(pinned_memory=True)) as device:
        record = accelerator_of(device)
        pinned, event = torch.zeros(3, pin_memory=True), record.module.Event()
        there = torch.empty(3, device=device)

        def copy() -> None:
            there.copy_(pinned, non_blocking=True)
            event.record(record.module.current_stream())

        copy()
        event.synchronize()
        pinned.add_(1.0)
        copy()
        pinned.add_(1.0)
        with pytest.raises(RuntimeError, match="overwritten"):
            event.synchronize()
