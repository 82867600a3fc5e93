import pytest
import torch
from torch import nn

from agents import DDPG
from agents.modules import target_network
from agents.modules.target_network import TargetNetwork
from tests.helpers.agents import assert_equal, make_batch, small
from torchrl_gpu.devices.kinds import DirectML, accelerator_of

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rate", "period"), [(0.1, 1), (1.0, 1), (1.0, 3), (0.25, 2)])
def test_target_network_without_lerp_follows_as_with_it(
    rate: float, period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = []
    for kind in (accelerator_of, DirectML):
        monkeypatch.setattr(target_network, "accelerator_of", kind)
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


def test_every_target_network_among_the_attributes_of_an_agent_follows() -> None:
    class WithAnother(DDPG):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.target_critic = TargetNetwork(self.critic, rate=1.0)

    agent = small(WithAnother)
    agent.update(make_batch(agent))
    assert_equal(agent.target_critic.network.state_dict(), agent.critic.state_dict())


@pytest.mark.parametrize("period", [1, 2])
def test_target_network_is_on_the_device_of_its_original(
    period: int, accelerator: torch.device
) -> None:
    online = nn.Linear(3, 2).to(accelerator)
    target = TargetNetwork(online, 1.0, period)
    assert {value.device for value in target.state_dict().values()} == {accelerator}
    nn.init.normal_(online.weight)
    for _ in range(2):
        target.update()
    assert torch.equal(target.network.get_parameter("weight"), online.weight)


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "accelerator"])
def test_target_network_copies_the_statistics_of_a_batch_norm_when_it_moves(
    period: int, device: str, accelerator: torch.device
) -> None:
    place = accelerator if device == "accelerator" else CPU
    online = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(place)
    target = TargetNetwork(online, 0.5, period)
    before = {name: buffer.clone() for name, buffer in online.named_buffers()}
    online(5.0 + torch.randn(16, 3, device=place))
    for number in range(1, period + 1):
        target.update()
        expected = dict(online.named_buffers()) if number == period else before
        for name, buffer in expected.items():
            assert torch.equal(target.network.get_buffer(name), buffer), name


def test_target_network_does_nothing_between_its_moves_where_reads_are_cheap() -> None:
    target = TargetNetwork(nn.Linear(3, 2), 1.0, period=3)
    target.update()
    with torch.profiler.profile() as profile:
        target.update()
    assert not {event.key for event in profile.key_averages()} & {"aten::copy_", "aten::mul_"}
