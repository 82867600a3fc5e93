from typing import get_args

import pytest
import torch
from torch import Tensor

from agents.modules.categorical_values import CategoricalValues
from agents.modules.twin_critics import TwinDistributions, Twins, TwinValues

every_combination = pytest.mark.parametrize("twins", get_args(Twins))


def five(twins: Twins) -> TwinDistributions:
    """Atoms -2, -1, 0, 1, 2."""
    return TwinDistributions(twins, CategoricalValues(-2.0, 2.0, 5))


def logits(*distributions: list[float]) -> Tensor:
    """Return outputs `[2, 1, 5]` of two critics from their probabilities."""
    return torch.tensor(distributions).unsqueeze(1).clamp(min=1e-30).log()


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_values_have_the_lower_target_or_one_for_each_critic() -> None:
    outputs = torch.tensor([[[1.0], [5.0]], [[3.0], [-1.0]]])
    rest = {"bonus": column(0.5, 0.5), "reward": column(1.0, 2.0), "discount": column(0.5, 0.0)}
    # r + discount (min Q + bonus), with Q = (1, 3) and, after a termination, (5, -1)
    lower, own = TwinValues("minimum"), TwinValues("average")
    torch.testing.assert_close(lower.target(outputs, **rest), column(1.75, 2.0))
    expected = torch.tensor([[[1.75], [2.0]], [[2.75], [2.0]]])
    torch.testing.assert_close(own.target(outputs, **rest), expected)
    torch.testing.assert_close(lower.value(outputs), column(1.0, -1.0))
    torch.testing.assert_close(own.value(outputs), column(2.0, 2.0))
    # (0.75^2 + 3^2) / 2 for one critic, and (1.25^2 + 3^2) / 2 for the other
    loss = lower.loss(outputs, lower.target(outputs, **rest))
    torch.testing.assert_close(loss, torch.tensor((0.5625 + 9.0 + 1.5625 + 9.0) / 2))
    # Its own target for each: (0.75^2 + 3^2) / 2 and (0.25^2 + 3^2) / 2
    loss = own.loss(outputs, expected)
    torch.testing.assert_close(loss, torch.tensor((0.5625 + 9.0 + 0.0625 + 9.0) / 2))


# Means 0.4 and -0.5.
HIGH, LOW = [0.0, 0.2, 0.3, 0.4, 0.1], [0.25, 0.25, 0.25, 0.25, 0.0]


@pytest.mark.parametrize("order", [(HIGH, LOW), (LOW, HIGH)])
def test_minimum_of_two_distributions_is_the_one_with_the_lower_mean(
    order: tuple[list[float], list[float]],
) -> None:
    twins, outputs = five("minimum"), logits(*order)
    torch.testing.assert_close(twins.value(outputs), column(-0.5))
    target = twins.target(outputs, column(0.0), column(0.0), column(1.0))
    torch.testing.assert_close(target, torch.tensor([LOW]))


def test_average_has_one_target_for_each_distribution() -> None:
    twins, outputs = five("average"), logits(HIGH, LOW)
    torch.testing.assert_close(twins.value(outputs), column(-0.05))
    target = twins.target(outputs, column(0.0), column(0.0), column(1.0))
    torch.testing.assert_close(target, torch.tensor([[HIGH], [LOW]]))


@every_combination
def test_target_distribution_moves_by_reward_and_discounted_bonus(twins: Twins) -> None:
    outputs = logits([0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0])
    # 0.25 + 0.5 (1 + 0.5) = 1
    target = five(twins).target(outputs, column(0.5), column(0.25), column(0.5))
    torch.testing.assert_close(target.reshape(-1, 5)[0], torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]))
    # After a termination, the reward alone, half way from 1 to 2.
    target = five(twins).target(outputs, column(0.5), column(1.5), column(0.0))
    torch.testing.assert_close(target.reshape(-1, 5)[-1], torch.tensor([0.0, 0.0, 0.0, 0.5, 0.5]))


def test_loss_of_distributions_is_the_sum_of_their_mean_divergences() -> None:
    outputs = logits([0.2] * 5, LOW).expand(2, 3, 5)
    target = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]).expand(3, 5)
    # sum_j p_j log (p_j / q_j) = log(0.5 / 0.2) and log(0.5 / 0.25)
    expected = torch.tensor(2.5 * 2.0).log()
    torch.testing.assert_close(five("minimum").loss(outputs, target), expected)
