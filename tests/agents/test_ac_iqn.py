from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from agents.ac_iqn import ACIQN
from tests.helpers.agents import BATCH, make_batch, small
from torchrl_gpu.errors import ConfigurationError

make = partial(small, ACIQN)


class KnownQuantiles(torch.nn.Module):
    """Z_tau(s, a) = value + slope tau (1 + a_0) for every observation s."""

    def __init__(self, value: float, slope: float = 0.0) -> None:
        super().__init__()
        self.value, self.slope = value, slope

    def forward(
        self, observation: TensorDict, action: torch.Tensor, fractions: torch.Tensor
    ) -> torch.Tensor:
        return self.value + self.slope * fractions * (1.0 + action[:, :1])


def test_critic_learns_the_quantiles_of_the_target_networks() -> None:
    agent = make(gamma=0.5, fractions=4, kappa=2.0)
    agent.critic = KnownQuantiles(2.0)
    agent.target_networks.network = nn.ModuleDict(
        {"actor": agent.actor, "critic": KnownQuantiles(20.0)}
    )
    batch = make_batch(agent)
    batch["next", "reward"] = torch.full((BATCH, 1), 4.0)
    batch["next", "terminated"][0] = True
    batch["next", "truncated"][1] = True
    torch.manual_seed(3)
    loss = agent.loss(batch).terms["loss/critic"]
    torch.manual_seed(3)
    torch.rand(BATCH, agent.target_fractions)
    # All errors are positive: the weights are tau itself, and add up over the 4 fractions.
    weight = torch.rand(BATCH, 4).sum(1)
    # The error is 4 + 0.5 * 20 - 2 = 12; after the termination 4 - 2. L_2(12) / 2 = 11, L_2(2) / 2
    # = 1.
    huber = torch.full((BATCH,), 11.0)
    huber[0] = 1.0
    torch.testing.assert_close(loss, (weight * huber).mean())


@pytest.mark.parametrize("risk_level", [1.0, 0.2])
def test_actor_maximizes_the_mean_of_the_worst_returns(risk_level: float) -> None:
    agent = make(fractions=2000, risk_level=risk_level)
    agent.critic = KnownQuantiles(1.0, slope=10.0)
    batch = make_batch(agent)
    action = agent.actor(batch)[:, 0].mean().item()
    # tau is risk_level / 2 on average.
    expected = -1.0 - 10.0 * risk_level / 2 * (1.0 + action)
    assert agent.loss(batch).terms["loss/actor"].item() == pytest.approx(expected, rel=0.01)


def test_fewer_than_two_hidden_layers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="hidden_sizes"):
        make(hidden_sizes=[16])


@pytest.mark.parametrize("critic_layer_norm", [False, True])
def test_layer_norm_is_in_the_critic_alone(critic_layer_norm: bool) -> None:
    agent = make(critic_layer_norm=critic_layer_norm)
    norms = [
        sum(isinstance(module, nn.LayerNorm) for module in network.modules())
        for network in (agent.actor, agent.critic, agent.target_networks)
    ]
    assert norms == ([0, 3, 3] if critic_layer_norm else [0, 0, 0])
