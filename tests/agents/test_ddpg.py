from functools import partial

import pytest
import torch

from agents import ACIQN, DDPG
from agents.modules.encoders import ObservationEncoderFactory
from tests.helpers.agents import make_batch, small

make = partial(small, DDPG)


@pytest.mark.parametrize("terminated", [False, True])
def test_critic_learns_the_value_of_the_target_networks(terminated: bool) -> None:
    agent = make(gamma=0.9)
    target_actor, target_critic = agent.target_networks.network.children()
    for p in agent.target_networks.parameters():
        p.data += 0.1  # so that target and online networks differ
    batch = make_batch(agent, terminated=terminated)
    after = batch["next"]
    next_action = target_actor(after)
    next_value = target_critic(after, next_action)[0]
    target = after["reward"] + (0.0 if terminated else 0.9) * next_value
    value = agent.critic(batch, batch["action"])[0]
    expected = (value - target).square().mean()
    torch.testing.assert_close(agent.loss(batch).terms["loss/critic"], expected)


def test_greedy_actions_are_near_0_at_first() -> None:
    agent = make()
    agent.policy.eval()
    assert agent.policy(make_batch(agent))["action"].abs().max() < 0.03


@pytest.mark.parametrize("kind", [DDPG, ACIQN])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_only_the_penalty_moves_a_saturated_actor(kind: type[DDPG | ACIQN], penalty: float) -> None:
    agent = small(kind, saturation_penalty=penalty)
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


def test_the_critic_trains_a_shared_encoder() -> None:
    encoder = ObservationEncoderFactory(vector_features=8, shared=True)
    agent = make(encoder=encoder)
    actor, critic = (set(group["params"]) for group in agent.optimizer.param_groups)
    assert actor.isdisjoint(critic)
    assert critic == set(agent.critic.parameters())
    assert actor | critic == {p for p in agent.parameters() if p.requires_grad}
