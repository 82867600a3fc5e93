from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from agents.iqn import IQN
from tests.helpers.agents import BATCH, OBSERVATION, make_batch, small

make = partial(small, IQN)


def with_known_quantiles(agent: IQN) -> IQN:
    """Make the quantiles of actions 0, 1 and 2 depend on tau alone.

    Online Z = (2, 10 tau, 0): the mean is (2, 5, 0), the mean of the worst tenth (2, 0.5, 0).
    Target Z = (20, 10, 5 + 20 tau): the mean is (20, 10, 15).
    """
    networks: list[tuple[Any, list[float], list[float]]] = [
        (agent.network, [2.0, 0.0, 0.0], [0.0, 10.0, 0.0]),
        (agent.target_network.network, [20.0, 10.0, 5.0], [0.0, 0.0, 20.0]),
    ]
    for network, bias, slope in networks:
        known = KnownQuantiles(bias, slope)
        network.values, network.quantiles = known.values, known.quantiles
    return agent


class KnownQuantiles:
    """Z_tau(s, a) = bias_a + slope_a tau."""

    def __init__(self, bias: list[float], slope: list[float]) -> None:
        self.bias, self.slope = torch.tensor(bias), torch.tensor(slope)

    def values(self, features: torch.Tensor, fractions: torch.Tensor) -> torch.Tensor:
        means = self.bias + self.slope * fractions.mean()
        return means.expand(*features.shape[:-1], 3)

    def quantiles(
        self, features: torch.Tensor, fractions: torch.Tensor, action: torch.Tensor
    ) -> torch.Tensor:
        return self.bias[action].unsqueeze(-1) + self.slope[action].unsqueeze(-1) * fractions


@pytest.mark.parametrize(("risk_level", "action"), [(1.0, 1), (0.1, 0)])
@pytest.mark.parametrize("training", [False, True])
def test_a_risk_averse_policy_prefers_a_certain_return(
    risk_level: float, action: int, training: bool
) -> None:
    agent = with_known_quantiles(make(risk_level=risk_level, epsilon_start=0.0, epsilon_end=0.0))
    agent.policy.train(training)
    observation = TensorDict({"observation": torch.randn(2, 7, OBSERVATION)}, [2, 7])
    assert torch.equal(agent.policy(observation)["action"], torch.full((2, 7), action))


@pytest.mark.parametrize("head_sizes", [[], [16]])
@pytest.mark.parametrize("batch", [[7], [2, 7]])
def test_values_are_means_of_the_quantiles_of_each_action(
    head_sizes: list[int], batch: list[int]
) -> None:
    network = make(head_sizes=head_sizes).network
    features = network(TensorDict({"observation": torch.randn(*batch, OBSERVATION)}, batch))
    fractions = torch.rand(8)
    values = network.values(features, fractions)
    for action in range(3):
        actions = torch.full(batch, action)
        quantiles = network.quantiles(features, fractions.expand(*batch, 8), actions)
        torch.testing.assert_close(quantiles.mean(-1), values[..., action])


@pytest.mark.parametrize("head_sizes", [[], [16]])
def test_quantiles_are_those_of_the_whole_head(head_sizes: list[int]) -> None:
    network = make(head_sizes=head_sizes).network
    features = network(TensorDict({"observation": torch.randn(BATCH, OBSERVATION)}, [BATCH]))
    fractions, action = torch.rand(BATCH, 4), torch.randint(3, (BATCH,))
    # Z_tau(s, a) = f(psi(s) * phi(tau))_a, and its gradients
    every = network.head(features.unsqueeze(1) * network.embedding(fractions))
    expected = every[torch.arange(BATCH), :, action]
    found = network.quantiles(features, fractions, action)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(BATCH, 4)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), list(network.parameters()), retain_graph=True),
        torch.autograd.grad((expected * weight).sum(), list(network.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_fixed_fractions_give_the_mean_of_random_fractions() -> None:
    network = make(acting_fractions=64).network
    features = network(TensorDict({"observation": torch.randn(BATCH, OBSERVATION)}, [BATCH]))
    fixed = network.values(features, network.acting_midpoints)
    drawn = network.values(features, torch.rand(5_000))
    torch.testing.assert_close(fixed, drawn, atol=0.02, rtol=0.0)
    averse = make(acting_fractions=4, risk_level=0.4).network
    torch.testing.assert_close(averse.acting_midpoints, torch.tensor([0.05, 0.15, 0.25, 0.35]))


# The target network prefers the action of target value 20, the online network that of 10.
@pytest.mark.parametrize(("double", "next_value"), [(False, 20.0), (True, 10.0)])
def test_double_decides_which_network_chooses_the_next_action(
    double: bool, next_value: float
) -> None:
    agent = with_known_quantiles(make(double=double, gamma=0.5, fractions=4, kappa=1.0))
    batch = make_batch(agent)
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)  # of value 2
    batch["next", "reward"] = torch.full((BATCH, 1), 4.0)
    batch["next", "terminated"][0] = True
    batch["next", "truncated"][1] = True
    torch.manual_seed(3)
    losses = agent.loss(batch)
    torch.manual_seed(3)
    agent.network.draw_acting_fractions()
    torch.rand(BATCH, agent.target_fractions)
    # All errors are positive: the weights are tau itself, and add up over the 4 fractions.
    weight = torch.rand(BATCH, 4).sum(1)
    error = torch.full((BATCH,), 4.0 + 0.5 * next_value - 2.0)
    error[0] = 4.0 - 2.0
    torch.testing.assert_close(losses.priorities, weight * (error - 0.5))
    torch.testing.assert_close(losses.terms["loss/value"], (weight * (error - 0.5)).mean())


def test_head_sizes_add_hidden_layers_behind_the_product() -> None:
    agent = make(head_sizes=[8])
    assert agent.network.head[0].weight.shape == (8, 16)
    assert agent.update(make_batch(agent)).metrics["loss/value"].isfinite()
