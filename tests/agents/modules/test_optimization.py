from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agents.modules import optimization
from agents.modules.optimization import TargetNetwork, adam, joint_parameters, parameter_groups
from agents.modules.plain_adam import PlainAdam
from tests.stand_in import count_host_reads
from torchrl_gpu.devices.kinds import DirectML, accelerator_of

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")


def learn(device: torch.device) -> list[Tensor]:
    """Take three steps, the second at twice the learning rate, and return the parameters."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    batch = torch.ones(4, 3, device=device)
    optimizer = adam(network.parameters(), 1e-2, device, epsilon=1e-7)
    (group,) = optimizer.param_groups
    factors = [torch.tensor(factor, device=device) for factor in (1.0, 2.0, 0.5)]
    with count_host_reads() as counter:
        for factor in factors:
            group["lr"].mul_(factor)
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    assert counter.host_reads == counter.copies == 0, counter.report()
    return [parameter.detach().cpu() for parameter in network.parameters()]


def test_step_reads_a_changed_learning_rate_and_nothing_back_to_the_host(
    accelerator: torch.device,
) -> None:
    for on_device, on_host in zip(learn(accelerator), learn(CPU), strict=True):
        torch.testing.assert_close(on_device, on_host)


def test_step_uses_lists_of_tensors_on_devices_without_a_fused_step(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records the operation that receives the list of all parameters."""
    lengths: list[int] = []
    addcdiv = torch._foreach_addcdiv_

    def record(tensors: list[Tensor], *others: object) -> None:
        lengths.append(len(tensors))
        addcdiv(tensors, *others)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "_foreach_addcdiv_", record)
    learn(accelerator)
    assert lengths == [4, 4, 4]


def test_adam_has_the_options_of_its_device(accelerator: torch.device) -> None:
    for device in (CPU, accelerator):
        parameters = [nn.Parameter(torch.zeros(2, device=device))]
        (group,) = adam(parameters, 1e-3, device, epsilon=1e-5).param_groups
        assert group["eps"] == 1e-5
        options = accelerator_of(device).adam_options
        assert {flag: group[flag] for flag in options} == options


def test_every_parameter_group_has_its_own_learning_rate() -> None:
    networks = nn.Linear(2, 2), nn.Linear(2, 2)
    one, other = adam(parameter_groups(*networks), 1e-3, CPU).param_groups
    one["lr"].mul_(2.0)
    assert (one["lr"].item(), other["lr"].item()) == pytest.approx((2e-3, 1e-3))


def test_a_shared_parameter_is_in_one_group_once() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    both = nn.Sequential(first, second)
    groups = [group["params"] for group in parameter_groups(both, second)]
    assert [len(group) for group in groups] == [2, 2]
    assert groups[1][0] is second.weight
    assert len(joint_parameters(both, second)) == 4


def test_device_without_lerp_has_a_plain_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    assert type(adam(parameters, 1e-3, CPU)) is torch.optim.Adam
    monkeypatch.setattr(optimization, "accelerator_of", DirectML)
    assert type(adam(parameters, 1e-3, CPU)) is PlainAdam


@pytest.mark.parametrize(("rate", "period"), [(0.1, 1), (1.0, 1), (1.0, 3), (0.25, 2)])
def test_target_network_without_lerp_follows_as_with_it(
    rate: float, period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = []
    for kind in (accelerator_of, DirectML):
        monkeypatch.setattr(optimization, "accelerator_of", kind)
        torch.manual_seed(0)
        online = nn.Linear(3, 2)
        networks.append((online, TargetNetwork(online, rate, period)))
    for step in range(7):
        for online, target in networks:
            torch.manual_seed(step)
            nn.init.normal_(online.weight)
            target.update()
        (online, target), (_, plain) = networks
        torch.testing.assert_close(plain.state_dict(), target.state_dict())
        if rate == 1.0 and (step + 1) % period == 0:
            assert torch.equal(plain.network.get_parameter("weight"), online.weight)
