from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from agents.iqn import IQN
from tests.helpers.agents import BATCH, CPU, OBSERVATION, make_batch, small_specs


def make(**hyperparameters: Any) -> IQN:
    torch.manual_seed(0)
    return IQN(*small_specs("discrete"), CPU, hidden_sizes=[16, 16], **hyperparameters)


def with_known_quantiles(agent: IQN) -> IQN:
    """Make the quantiles of actions 0, 1 and 2 depend on tau alone.

    Online Z = (2, 10 tau, 0): the mean is (2, 5, 0), the mean of the worst tenth (2, 0.5, 0).
    Target Z = (20, 10, 5 + 20 tau): the mean is (20, 10, 15).
    """
    for network, bias, slope in (
        (agent.network, [2.0, 0.0, 0.0], [0.0, 10.0, 0.0]),
        (agent.target_network.network, [20.0, 10.0, 5.0], [0.0, 0.0, 20.0]),
    ):
        network.forward = known = KnownQuantiles(bias, slope)
        network.values = known.means  # type: ignore[assignment]
    return agent


class KnownQuantiles:
    """Z_tau(s, a) = bias_a + slope_a tau."""

    def __init__(self, bias: list[float], slope: list[float]) -> None:
        self.bias, self.slope = torch.tensor(bias), torch.tensor(slope)

    def __call__(self, observation: TensorDict, fractions: torch.Tensor) -> torch.Tensor:
        values = self.bias + self.slope * fractions.unsqueeze(-1)
        return values.expand(*observation.batch_size, *values.shape[-2:])

    def means(self, observation: TensorDict, fractions: torch.Tensor) -> torch.Tensor:
        return self(observation, fractions).mean(dim=-2)


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
def test_the_values_of_a_batch_are_means_of_its_quantiles(head_sizes: list[int]) -> None:
    network = make(head_sizes=head_sizes).network
    observation = TensorDict({"observation": torch.randn(2, 7, OBSERVATION)}, [2, 7])
    fractions = torch.rand(8)
    means = network(observation, fractions).mean(dim=-2)
    torch.testing.assert_close(network.values(observation, fractions), means)


def test_fixed_fractions_give_the_mean_of_random_fractions() -> None:
    agent = make(acting_fractions=64)
    observation = TensorDict({"observation": torch.randn(BATCH, OBSERVATION)}, [BATCH])
    fixed = agent.network(observation, agent.network.acting_midpoints).mean(-2)
    drawn = agent.network(observation, torch.rand(BATCH, 5_000)).mean(-2)
    torch.testing.assert_close(fixed, drawn, atol=0.02, rtol=0.0)


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
