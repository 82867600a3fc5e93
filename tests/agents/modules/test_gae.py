import pytest
import torch
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate

from agents.modules.gae import generalized_advantage, linear_recurrence

GAMMA, LAMBDA = 0.9, 0.5


def column(*values: float) -> Tensor:
    return torch.tensor(values).reshape(-1, 1)


def flags(steps: int, at: int | None = None) -> Tensor:
    return (torch.arange(steps) == (-1 if at is None else at)).reshape(-1, 1)


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


def test_termination_time_limit_and_a_running_episode_in_one_batch() -> None:
    # Three environments of three steps; the second step ends the first two.
    reward = column(1.0, 2.0, 3.0).expand(3, 3)
    value = column(0.5, 1.5, 2.5).expand(3, 3)
    next_value = column(1.0, 10.0, 4.0).expand(3, 3)
    terminated = torch.cat([flags(3, 1), flags(3), flags(3)], dim=1)
    truncated = torch.cat([flags(3), flags(3, 1), flags(3)], dim=1)
    advantage = generalized_advantage(
        reward, value, next_value, terminated, truncated, GAMMA, LAMBDA
    )
    # delta = r + 0.9 V' - V: 1.4, 9.5 and 4.1; at the termination 2 - 1.5 = 0.5
    last = 4.1
    expected = torch.tensor(
        [
            [1.4 + 0.45 * 0.5, 1.4 + 0.45 * 9.5, 1.4 + 0.45 * (9.5 + 0.45 * last)],
            [0.5, 9.5, 9.5 + 0.45 * last],
            [last, last, last],
        ]
    )
    torch.testing.assert_close(advantage, expected)


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
