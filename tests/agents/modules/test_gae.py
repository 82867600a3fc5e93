import pytest
import torch
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate

from agents.modules.gae import generalized_advantage, linear_recurrence

GAMMA, LAMBDA = 0.9, 0.5


def in_a_loop(increment: Tensor, coefficient: Tensor) -> Tensor:
    result: list[Tensor] = []
    following = torch.zeros_like(increment[0])
    for t in reversed(range(increment.shape[0])):
        following = increment[t] + coefficient[t] * following
        result.insert(0, following)
    return torch.stack(result)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 9, 64, 100])
def test_the_scan_equals_the_loop(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    increment = torch.randn(steps, 3, 1, generator=generator)
    coefficient = torch.rand(steps, 3, 1, generator=generator)
    expected = in_a_loop(increment, coefficient)
    torch.testing.assert_close(linear_recurrence(increment, coefficient), expected)


def test_the_scan_does_not_change_its_inputs() -> None:
    increment, coefficient = torch.ones(5, 1), torch.ones(5, 1)
    assert linear_recurrence(increment, coefficient).flatten().tolist() == [5, 4, 3, 2, 1]
    assert increment.eq(1).all()
    assert coefficient.eq(1).all()


def test_advantages_equal_those_of_torchrl() -> None:
    steps, envs = 50, 6
    generator = torch.Generator().manual_seed(0)
    reward, value, next_value = torch.randn(3, steps, envs, 1, generator=generator)
    end = torch.rand(steps, envs, 1, generator=generator)
    terminated, truncated = end < 0.1, (end >= 0.1) & (end < 0.2)
    ours = generalized_advantage(reward, value, next_value, terminated, truncated, GAMMA, LAMBDA)
    theirs, _ = generalized_advantage_estimate(
        GAMMA,
        LAMBDA,
        value,
        next_value,
        reward,
        terminated | truncated,
        terminated,
        time_dim=0,
    )
    torch.testing.assert_close(ours, theirs)
