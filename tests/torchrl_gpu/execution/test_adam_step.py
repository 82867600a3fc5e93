"""Adam with one kernel and with lists of tensors, beside torch's."""

import copy

import pytest
import torch
from torch import Tensor, nn

from torchrl_gpu.devices.kinds import Cpu
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import Adam
from torchrl_gpu.execution.precision import Precision

RATE, EPSILON = torch.tensor(1e-2), 1e-3
pytestmark = pytest.mark.directml


@pytest.fixture(params=[True, False], ids=["fused", "lists"])
def fused(request: pytest.FixtureRequest) -> bool:
    """Whether one kernel does the steps."""
    is_fused: bool = request.param
    return is_fused


def build(kind: type[torch.optim.Adam], fused: bool) -> tuple[nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return network, kind(network.parameters(), lr=RATE.clone(), eps=EPSILON, fused=fused)


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


def test_many_steps_equal_those_of_torch(fused: bool) -> None:
    plain, reference = build(Adam, fused), build(torch.optim.Adam, fused)
    before = reference[0].get_parameter("0.weight").clone()
    for network, optimizer in (plain, reference):
        learn(network, optimizer, range(200))
    assert_close(plain[0], reference[0])
    assert not torch.allclose(before, reference[0].get_parameter("0.weight"), atol=0.1)


def test_state_has_the_keys_of_torch(fused: bool) -> None:
    states = []
    for kind in (Adam, torch.optim.Adam):
        network, optimizer = build(kind, fused)
        learn(network, optimizer, range(2))
        states.append(optimizer.state_dict())
    plain, reference = states
    added = plain["param_groups"][0].keys() - reference["param_groups"][0].keys()
    assert added == {"starting_lr"}
    assert plain["state"].keys() == reference["state"].keys()
    for number, state in plain["state"].items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in state.items():
            expected = reference["state"][number][name]
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("kinds", [(Adam, torch.optim.Adam), (torch.optim.Adam, Adam)])
def test_state_of_either_kind_continues_in_the_other(
    kinds: tuple[type[torch.optim.Adam], ...], fused: bool
) -> None:
    first, second = kinds
    whole, optimizer = build(first, fused)
    learn(whole, optimizer, range(10))

    continued, resumed = build(second, fused)
    continued.load_state_dict(whole.state_dict())
    # A copy, because loading shares the tensors of a state on the same device.
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(whole, optimizer, range(10, 20))
    learn(continued, resumed, range(10, 20))
    assert_close(continued, whole)


def test_learning_rate_of_0_changes_nothing(fused: bool) -> None:
    network, optimizer = build(Adam, fused)
    optimizer.param_groups[0]["lr"].zero_()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    learn(network, optimizer, range(3))
    torch.testing.assert_close(dict(network.state_dict()), before, rtol=0.0, atol=0.0)


def test_closure_computes_the_gradients(fused: bool) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Adam([parameter], lr=RATE.clone(), fused=fused)

    def loss() -> Tensor:
        total = parameter.square().sum()
        total.backward()
        return total.detach()

    assert optimizer.step(loss) == 2.0
    assert (parameter < 1.0).all()


@pytest.mark.parametrize("max_norm", [0.5, 100.0], ids=["clipped", "within"])
def test_step_divides_gradients_by_the_excess_of_the_norm_of_their_group(
    max_norm: float, fused: bool
) -> None:
    ends = []
    for kind in (Adam, torch.optim.Adam):
        network, _ = build(kind, fused)
        groups = [{"params": list(network.get_submodule(name).parameters())} for name in ("0", "2")]
        optimizer = kind(groups, lr=RATE.clone(), eps=EPSILON, fused=fused)
        for seed in range(5):
            torch.manual_seed(seed)
            for parameter in network.parameters():
                parameter.grad = torch.randn_like(parameter)
            if isinstance(optimizer, Adam):
                optimizer.step(max_norm=max_norm)
                continue
            for group in groups:
                nn.utils.clip_grad_norm_(group["params"], max_norm)
            optimizer.step()
        # The gradients too, because Adam takes the same steps from multiples of them.
        gradients = [parameter.grad for parameter in network.parameters()]
        ends.append([network.state_dict(), gradients])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_a_fused_step_does_nothing_where_a_scaled_gradient_overflows() -> None:
    network, optimizer = build(Adam, fused=True)
    learn(network, optimizer, range(2))
    before = copy.deepcopy([network.state_dict(), optimizer.state_dict()["state"]])
    network.get_parameter("0.weight").grad = torch.full((8, 3), torch.inf)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step(max_norm=1.0)  # type: ignore[call-arg]
    after = [network.state_dict(), optimizer.state_dict()["state"]]
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("unscales", [False, True], ids=["", "unscaled"])
@pytest.mark.parametrize("is_infinite", [False, True], ids=["finite", "infinite"])
def test_a_scaler_of_gradients_steps_as_with_torch(
    is_infinite: bool, unscales: bool, fused: bool
) -> None:
    ends = []
    for kind in (Adam, torch.optim.Adam):
        network, optimizer = build(kind, fused)
        if isinstance(optimizer, Adam):  # from an optimizer that leaves its step to torch
            other = torch.optim.Adam(build(Adam, fused)[0].parameters(), lr=RATE, eps=EPSILON)
            optimizer.load_state_dict(other.state_dict())
        scaler = torch.amp.GradScaler("cpu")
        for factor in (1.0, torch.inf if is_infinite else 2.0, 1.0):
            optimizer.zero_grad()
            scaler.scale(factor * network(torch.ones(4, 3)).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        moments = [each["exp_avg_sq"] for each in optimizer.state_dict()["state"].values()]
        ends.append([network.state_dict(), moments])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_acts_as_in_torch(norm: float, fused: bool) -> None:
    ends = []
    for kind in (Adam, torch.optim.Adam):
        network, optimizer = build(kind, fused)
        learn(network, optimizer, range(1))
        network.get_parameter("0.weight").grad = torch.full((8, 3), norm)
        if isinstance(optimizer, Adam):
            optimizer.step(max_norm=1.0)
        else:
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        ends.append(network.state_dict())
    torch.testing.assert_close(*ends, equal_nan=True, rtol=1e-4, atol=1e-6)


def test_a_device_whose_kernel_ignores_the_scale_clips_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for scales in (True, False):
        monkeypatch.setattr(Cpu, "scaling_adam", scales)
        network, optimizer = build(Adam, fused=True)
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(max_norm=0.5)  # type: ignore[call-arg]
        norms = [p.grad.norm() for p in network.parameters() if p.grad is not None]
        ends.append((network.state_dict(), torch.stack(norms).norm()))
    torch.testing.assert_close(*ends)
    assert ends[0][1].item() == pytest.approx(0.5)


@pytest.mark.parametrize("option", ["weight_decay", "maximize", "amsgrad"])
def test_options_that_it_lacks_are_refused(option: str) -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    saved = torch.optim.Adam([{"params": parameters, option: True}]).state_dict()
    own = Adam(parameters)
    with pytest.raises(ConfigurationError, match=f"Adam: {option} is not supported"):
        Adam([{"params": parameters, option: True}])
    with pytest.raises(ConfigurationError, match=f"Adam: {option} is not supported"):
        own.load_state_dict(saved)


def test_the_gradients_of_other_optimizers_are_clipped_as_well() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 10.0)
    Precision("fp32", torch.device("cpu")).step([torch.optim.SGD([parameter], 1.0)], max_norm=1.0)
    torch.testing.assert_close(parameter.detach(), torch.full((4,), -0.5))
