import copy

import pytest
import torch
from torch import Tensor, nn

from torchrl_gpu.execution.adam import PlainAdam

RATE, EPSILON = torch.tensor(1e-2), 1e-7
pytestmark = pytest.mark.directml


def build(kind: type[torch.optim.Adam]) -> tuple[nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return network, kind(network.parameters(), lr=RATE.clone(), eps=EPSILON)


def learn(network: nn.Module, optimizer: torch.optim.Adam, steps: range) -> None:
    """Take steps on batches that follow from their numbers; the learning rate changes on the way.

    Every third step has no gradient for the last layer.
    """
    (group,) = optimizer.param_groups
    for step in steps:
        group["lr"].mul_(0.99)
        batch = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (network(batch).squeeze() - batch.sum(1)).square().mean().backward()
        if step % 3 == 0:
            network.get_parameter("2.weight").grad = None
        optimizer.step()


def assert_close(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)


def test_many_steps_equal_those_of_torch() -> None:
    plain, reference = build(PlainAdam), build(torch.optim.Adam)
    before = reference[0].get_parameter("0.weight").clone()
    for network, optimizer in (plain, reference):
        learn(network, optimizer, range(200))
    assert_close(plain[0], reference[0])
    assert not torch.allclose(before, reference[0].get_parameter("0.weight"), atol=0.1)


def test_state_has_the_keys_of_torch() -> None:
    states = []
    for kind in (PlainAdam, torch.optim.Adam):
        network, optimizer = build(kind)
        learn(network, optimizer, range(2))
        states.append(optimizer.state_dict())
    plain, reference = states
    assert plain["param_groups"][0].keys() == reference["param_groups"][0].keys()
    assert plain["state"].keys() == reference["state"].keys()
    for number, state in plain["state"].items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in state.items():
            expected = reference["state"][number][name]
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("kinds", [(PlainAdam, torch.optim.Adam), (torch.optim.Adam, PlainAdam)])
def test_state_of_either_kind_continues_in_the_other(
    kinds: tuple[type[torch.optim.Adam], ...],
) -> None:
    first, second = kinds
    whole, optimizer = build(first)
    learn(whole, optimizer, range(10))

    continued, resumed = build(second)
    continued.load_state_dict(whole.state_dict())
    # A copy, because loading shares the tensors of a state on the same device.
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(whole, optimizer, range(10, 20))
    learn(continued, resumed, range(10, 20))
    assert_close(continued, whole)


def test_learning_rate_of_0_changes_nothing() -> None:
    network, optimizer = build(PlainAdam)
    optimizer.param_groups[0]["lr"].zero_()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    learn(network, optimizer, range(3))
    torch.testing.assert_close(dict(network.state_dict()), before, rtol=0.0, atol=0.0)


def test_closure_computes_the_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = PlainAdam([parameter], lr=RATE.clone())

    def loss() -> Tensor:
        total = parameter.square().sum()
        total.backward()
        return total.detach()

    assert optimizer.step(loss) == 2.0
    assert (parameter < 1.0).all()
