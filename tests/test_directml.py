"""The operations of all agents, held against the kernels of torch-directml."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.directml.operations import RecordedOperations, kernels
from benchmarks.directml.steps import capabilities_of_directml, record_steps
from tests.helpers.agents import (
    WITH_ALL_OPTIONS,
    WITH_SCHEDULES,
    Case,
    every_agent,
    make_batch,
    parameters,
    with_switches_turned,
)
from torchrl_gpu.devices.kinds import DirectML

pytestmark = pytest.mark.directml

# Round trips to the CPU per step, by agent and part of the step; all others make none. These are
# the ones that docs/directml.md names.
EXPECTED = {("Rainbow", "store"): {"aten::scatter_reduce.two_out": 2}}


def round_trips(computation: Callable[[], object]) -> Counter[str]:
    with RecordedOperations() as operations:
        computation()
    return operations.round_trips


@every_agent
@pytest.mark.parametrize(
    "options",
    [{}, WITH_ALL_OPTIONS, WITH_SCHEDULES],
    ids=["defaults", "all options", "schedules"],
)
def test_round_trips_of_every_agent(case: Case, options: dict[str, Any]) -> None:
    name = case.agent_class.__name__
    steps = record_steps(case.agent_class, case.actions, batch_size=8, **options)
    for part, operations in steps._asdict().items():
        assert operations.native, part
        assert operations.round_trips == EXPECTED.get((name, part), {}), part


@every_agent
def test_no_switch_of_an_agent_adds_round_trips(case: Case) -> None:
    switches = with_switches_turned(case.agent_class)
    steps = record_steps(case.agent_class, case.actions, batch_size=8, n_step=3, **switches)
    assert not any(operations.round_trips for operations in steps)


@every_agent
def test_agents_learn_the_same_and_continue_from_either_device(case: Case) -> None:
    usual, preparing = case.make(**WITH_ALL_OPTIONS), case.make(**WITH_ALL_OPTIONS)
    with capabilities_of_directml():
        plain = case.make(**WITH_ALL_OPTIONS)
        plain.update(make_batch(preparing))
    for first, second in ((usual, plain), (plain, usual)):
        second.load_training_state(copy.deepcopy(first.training_state()))
        for step in range(4):
            batch = make_batch(preparing, seed=step)
            for agent in (first, second):
                torch.manual_seed(step)
                agent.update(batch)
        torch.testing.assert_close(parameters(first), parameters(second), rtol=1e-4, atol=1e-5)


def test_record_tells_round_trips_from_kernels() -> None:
    x = torch.rand(3, 4)
    native: list[Callable[[], Tensor]] = [
        lambda: x + 1.0,
        lambda: x.clone().add_(x),
        lambda: x % 2,
        lambda: torch.nn.functional.linear(x, x),
        lambda: torch.stack([x, x]).mean(),
        lambda: torch.randn(3).clamp(min=0.0),
    ]
    for computation in native:
        assert not round_trips(computation)
    assert round_trips(lambda: torch.lerp(x, x, 0.1)) == {"aten::lerp.Scalar_out": 1}
    assert round_trips(lambda: x.clone().lerp_(x, x)) == {"aten::lerp.Tensor_out": 1}
    assert round_trips(lambda: torch._foreach_lerp_([x, x], [x, x], 0.1)).total() == 2
    assert round_trips(lambda: x.amin(0)) == {"aten::amin.out": 1}
    assert round_trips(lambda: x.std()) == {"aten::std.correction": 1}
    assert round_trips(lambda: torch.nn.functional.elu(x)) == {"aten::elu.out": 1}
    assert round_trips(lambda: x.clamp(min=x)) == {"aten::clamp.Tensor_out": 1}


def test_operations_of_a_backward_pass_are_recorded() -> None:
    x = torch.rand(3, requires_grad=True)
    y = torch.nn.functional.silu(x).sum()
    assert round_trips(y.backward) == {"aten::silu_backward.grad_input": 1}


def test_views_of_another_dtype_count_because_they_fail_without_storage() -> None:
    assert round_trips(lambda: torch.zeros(4).view(torch.uint8)) == {"aten::view.dtype": 1}


def test_unknown_operations_count_as_round_trips() -> None:
    library = torch.library.Library("torchrl_gpu_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    found = round_trips(lambda: torch.ops.torchrl_gpu_test.double(torch.ones(2)))
    assert found == {"torchrl_gpu_test::double": 1}


def test_record_does_not_change_results() -> None:
    def compute() -> Tensor:
        torch.manual_seed(0)
        weight = torch.randn(4, 4, requires_grad=True)
        loss = (torch.randn(3, 4) @ weight).relu().softmax(-1).square().sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        return gradient

    with RecordedOperations():
        recorded = compute()
    torch.testing.assert_close(recorded, compute())


def test_capabilities_of_directml_agree_with_its_kernels() -> None:
    native, fallback = kernels()
    record = DirectML(torch.device("cpu"))
    assert record.lerp == ("aten::lerp.Scalar_out" in native)
    assert "aten::lerp.Scalar_out" in fallback
    assert not record.fused_adam
    assert record.searchsorted == ("aten::searchsorted.Tensor" in native)
    assert "aten::searchsorted.Tensor" in fallback
