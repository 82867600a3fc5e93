from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from agents import SAC
from tests.helpers.agents import CPU, make_batch, small_specs


def make(**hyperparameters: Any) -> SAC:
    torch.manual_seed(0)
    return SAC(*small_specs("continuous"), CPU, hidden_sizes=[16, 16], **hyperparameters)


@pytest.mark.parametrize("terminated", [False, True])
def test_critics_learn_the_lower_target_value_and_the_entropy(
    terminated: bool,
) -> None:
    agent = make(gamma=0.9, initial_temperature=0.2)
    for p in agent.target_critics.parameters():
        p.data += 0.1 * torch.randn(p.shape)  # so that target and online networks differ
    batch = make_batch(agent, terminated=terminated)
    torch.manual_seed(3)
    loss = agent.loss(batch).terms["loss/critic"]
    torch.manual_seed(3)
    next_action, next_log_prob = agent.actor.sample(batch["next"])
    one, other = agent.target_critics(batch["next"], next_action)
    next_value = torch.minimum(one, other) - 0.2 * next_log_prob
    target = batch["next", "reward"] + (0.0 if terminated else 0.9) * next_value
    error = agent.critics(batch, batch["action"]) - target
    torch.testing.assert_close(loss, error.square().mean(dim=(1, 2)).sum())


@pytest.mark.parametrize(("target_entropy", "direction"), [(100.0, 1.0), (-100.0, -1.0)])
def test_temperature_moves_towards_the_target_entropy(
    target_entropy: float, direction: float
) -> None:
    agent = make(target_entropy=target_entropy)
    before = agent.log_temperature.item()
    agent.update(make_batch(agent))
    assert math.copysign(1.0, agent.log_temperature.item() - before) == direction
