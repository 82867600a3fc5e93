from __future__ import annotations

import math

import pytest
import torch

from agents.modules import tanh_normal


def density_by_differences(action: float, mean: float, std: float) -> float:
    """Return the density at `action` as the numerical derivative of the distribution function."""
    normal = torch.distributions.Normal(
        torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    )
    step = 1e-6
    upper = normal.cdf(torch.tensor(math.atanh(action + step), dtype=torch.float64))
    lower = normal.cdf(torch.tensor(math.atanh(action - step), dtype=torch.float64))
    return float((upper - lower) / (2 * step))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.5)])
def test_log_probability_equals_that_of_the_density(mean: float, log_std: float) -> None:
    torch.manual_seed(0)
    means = torch.full((200, 1), mean, dtype=torch.float64)
    action, log_prob = tanh_normal.sample(means, torch.full_like(means, log_std))
    for one, its_log_prob in zip(action[:, 0].tolist(), log_prob[:, 0].tolist(), strict=True):
        if abs(one) < 0.999:
            expected = density_by_differences(one, mean, math.exp(log_std))
            assert math.exp(its_log_prob) == pytest.approx(expected, rel=1e-4)


def test_log_probabilities_of_dimensions_add_up() -> None:
    mean, log_std = torch.randn(5, 3), torch.randn(5, 3).clamp(-1, 1)
    torch.manual_seed(1)
    _, joint = tanh_normal.sample(mean, log_std)
    torch.manual_seed(1)
    noise = torch.randn(5, 3)
    total = torch.zeros(5, 1)
    for i in range(3):
        u = mean[:, i : i + 1] + log_std[:, i : i + 1].exp() * noise[:, i : i + 1]
        normal = torch.distributions.Normal(mean[:, i : i + 1], log_std[:, i : i + 1].exp())
        total += normal.log_prob(u) - torch.log(1 - u.tanh().square())
    torch.testing.assert_close(joint, total, rtol=1e-4, atol=1e-4)


def test_log_probability_and_gradient_are_finite_far_out() -> None:
    mean = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    _, log_prob = tanh_normal.sample(mean, torch.zeros(2, 1))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


def test_split_bounds_the_log_standard_deviation() -> None:
    mean, log_std = tanh_normal.split(torch.tensor([[3.0, -100.0], [3.0, 100.0]]))
    assert mean.tolist() == [[3.0], [3.0]]
    assert log_std.tolist() == [[-5.0], [2.0]]
