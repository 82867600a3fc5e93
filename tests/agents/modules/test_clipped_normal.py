import math

import pytest
import torch
from torch.distributions import Normal

from agents.modules import clipped_normal


@pytest.mark.parametrize(("mean_of_all", "std_of_all"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 0.8)])
def test_likelihood_is_the_density_inside_and_the_tail_at_the_bounds(
    mean_of_all: float, std_of_all: float
) -> None:
    mean, std = torch.tensor([[mean_of_all]]), torch.tensor([[std_of_all]])
    normal = Normal(mean, std)
    for action, expected in [
        (0.2, normal.log_prob(torch.tensor(0.2))),
        (-1.0, torch.special.log_ndtr((-1.0 - mean) / std)),
        (1.0, torch.special.log_ndtr((mean - 1.0) / std)),
    ]:
        actual = clipped_normal.log_prob(torch.tensor([[action]]), mean, std.log())
        torch.testing.assert_close(actual, expected)


def test_an_action_at_a_bound_is_recognized_despite_rounding() -> None:
    mean, log_std = torch.zeros(1, 1), torch.zeros(1, 1)
    exact = clipped_normal.log_prob(torch.tensor([[1.0]]), mean, log_std)
    rounded = clipped_normal.log_prob(torch.tensor([[1.0 - 1e-5]]), mean, log_std)
    torch.testing.assert_close(exact, rounded)


def test_log_probabilities_of_dimensions_add_up() -> None:
    action = torch.tensor([[-1.0, 0.1, 1.0]])
    mean, log_std = torch.tensor([[0.2, -0.4, 0.9]]), torch.tensor([-1.0, 0.0, 0.5])
    joint = clipped_normal.log_prob(action, mean, log_std)
    single = [
        clipped_normal.log_prob(action[:, i : i + 1], mean[:, i : i + 1], log_std[i : i + 1])
        for i in range(3)
    ]
    torch.testing.assert_close(joint, torch.stack(single).sum(dim=0))


def test_log_cdf_and_its_gradient_are_accurate_in_both_tails() -> None:
    points = torch.cat([torch.linspace(-60.0, 20.0, 2001), torch.tensor([-8.0, -1e4, 1e4])])
    x = points.requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    value, exact = clipped_normal.log_cdf(x), torch.special.log_ndtr(exact_x)
    value.sum().backward()
    exact.sum().backward()
    torch.testing.assert_close(value, exact.float(), rtol=1e-4, atol=1e-6)
    assert exact_x.grad is not None
    torch.testing.assert_close(x.grad, exact_x.grad.float(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("log_std", [clipped_normal.LOG_STD_MIN, 0.0, clipped_normal.LOG_STD_MAX])
def test_gradients_are_finite_for_very_unlikely_actions(log_std: float) -> None:
    means = torch.tensor([-100.0, -5.0, -1.0, 0.0, 1.0, 5.0, 100.0])
    actions = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    action, mean = torch.cartesian_prod(actions, means).chunk(2, dim=-1)
    mean = mean.clone().requires_grad_()
    log_stds = torch.full_like(mean, log_std, requires_grad=True)
    log_prob = clipped_normal.log_prob(action, mean, log_stds)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    for gradient in (mean.grad, log_stds.grad):
        assert gradient is not None
        assert torch.isfinite(gradient).all()


def test_samples_are_clipped_and_spread_around_the_mean() -> None:
    torch.manual_seed(0)
    mean, log_std = torch.full((20_000, 1), 0.5), torch.full((20_000, 1), -1.0)
    action = clipped_normal.draw(mean, log_std)
    normal = Normal(0.5, math.exp(-1.0))
    assert action.abs().max() <= 1.0
    at_bound = 1.0 - normal.cdf(torch.tensor(1.0)).item()
    assert (action == 1.0).float().mean().item() == pytest.approx(at_bound, abs=0.01)
    assert action.median().item() == pytest.approx(0.5, abs=0.02)


def test_entropy_equals_that_of_the_normal() -> None:
    log_std = torch.tensor([[0.3, -1.0]])
    expected = Normal(0.0, log_std.exp()).entropy().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(clipped_normal.entropy(log_std), expected)
