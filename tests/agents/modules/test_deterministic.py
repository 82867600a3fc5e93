from __future__ import annotations

import pytest
import torch

from agents import ACIQN, DDPG
from tests.helpers.agents import CPU, make_batch, small_specs


@pytest.mark.parametrize("kind", [DDPG, ACIQN])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_only_the_penalty_moves_a_saturated_actor(kind: type[DDPG | ACIQN], penalty: float) -> None:
    torch.manual_seed(0)
    agent = kind(*small_specs("continuous"), CPU, hidden_sizes=[16, 16], saturation_penalty=penalty)
    batch = make_batch(agent)
    with torch.no_grad():
        # tanh is 1 there, and flat, in float32
        agent.actor.network[-1].get_parameter("bias").fill_(15.0)
        before = agent.actor.raw(batch).mean()
        for _ in range(20):
            with torch.enable_grad():
                agent.update(batch)
        after = agent.actor.raw(batch).mean()
    assert after < before - 0.01 if penalty else after == before
