from functools import partial
from typing import Any

import pytest
import torch

from agents.dqn import DQN
from tests.helpers.agents import BATCH, make_batch, small

make = partial(small, DQN)


def with_known_values(agent: DQN) -> DQN:
    """Make online values (1, 2, 3) and target values (30, 20, 10) for every observation."""
    networks: list[Any] = [agent.network, agent.target_network.network]
    for network, values in zip(networks, ([1.0, 2.0, 3.0], [30.0, 20.0, 10.0]), strict=True):
        last = network.network[-1]
        torch.nn.init.zeros_(last.weight)
        last.bias.data.copy_(torch.tensor(values))
    return agent


@pytest.mark.parametrize(("double", "next_value"), [(False, 30.0), (True, 10.0)])
def test_double_decides_which_network_chooses_the_next_action(
    double: bool, next_value: float
) -> None:
    agent = with_known_values(make(double=double, gamma=0.5))
    batch = make_batch(agent)
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)  # of value 1
    batch["next", "reward"] = torch.full((BATCH, 1), 2.0)
    batch["next", "reward"][0] = 1.5
    batch["next", "terminated"][0] = True
    batch["next", "truncated"][1] = True
    losses = agent.loss(batch)
    # y = 2 + 0.5 * next value; after the termination 1.5 alone; the time limit changes nothing.
    error = torch.full((BATCH,), 2.0 + 0.5 * next_value - 1.0)
    error[0] = 1.5 - 1.0
    torch.testing.assert_close(losses.priorities, error)
    huber = error - 0.5
    huber[0] = 0.5**2 / 2
    torch.testing.assert_close(losses.terms["loss/value"], huber.mean())


def test_errors_count_quadratically_up_to_kappa() -> None:
    agent = with_known_values(make(double=False, gamma=0.5, kappa=10.0))
    batch = make_batch(agent)
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)  # of value 1
    batch["next", "reward"] = torch.full((BATCH, 1), -18.0)  # y = -18 + 0.5 * 30 = -3
    batch["next", "reward"][0] = 6.0
    batch["next", "terminated"][:] = False
    expected = torch.full((BATCH,), 4.0**2 / 2)
    expected[0] = 10.0 * (20.0 - 10.0 / 2)  # y = 21, beyond kappa
    torch.testing.assert_close(agent.loss(batch).terms["loss/value"], expected.mean())
