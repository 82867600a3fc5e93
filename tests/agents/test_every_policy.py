"""The actions of every agent: shapes, bounds and exploration."""

import pytest
import torch
from tensordict import TensorDict

from agents.base import Agent
from tests.helpers.agents import (
    ACTION_DIM,
    CHOICES,
    ENVS,
    OBSERVATION,
    Case,
    every_agent,
    every_agent_with,
)

pytestmark = pytest.mark.directml


def act(agent: Agent, observation: torch.Tensor) -> torch.Tensor:
    tensordict = TensorDict({"observation": observation}, observation.shape[:-1])
    return agent.policy(tensordict)["action"]


@every_agent
@pytest.mark.parametrize("batch", [(), (5,), (3, 2)])
def test_policy_acts_for_any_batch_shape_greedily_or_not(
    case: Case, batch: tuple[int, ...]
) -> None:
    agent = case.make(epsilon_start=1.0, epsilon_end=1.0)
    observation = torch.randn(*batch, OBSERVATION)
    agent.policy.eval()
    greedy = act(agent, observation)
    assert greedy.shape == (*batch, *agent.action_spec.shape[1:])
    assert greedy.dtype == agent.action_spec.dtype
    assert torch.equal(act(agent, observation), greedy)
    agent.policy.train()
    assert any(not torch.equal(act(agent, observation), greedy) for _ in range(20))


@every_agent
def test_actions_lie_in_the_action_spec(case: Case) -> None:
    agent = case.make(
        bounds=(2.0, 6.0), noise_start=1.0, log_std_init=1.0, noisy=False, epsilon_end=1.0
    )
    action = act(agent, 10.0 * torch.randn(50, ENVS, OBSERVATION))
    if case.actions == "continuous":
        assert action.std() > 0.1
        agent.policy.eval()
        greedy = act(agent, 1000.0 * torch.randn(50, ENVS, OBSERVATION))
        action = torch.cat((action, greedy))
        assert action.shape == (100, ENVS, ACTION_DIM)
        assert action.min() >= 2.0
        assert action.max() <= 6.0
    else:
        assert action.shape == (50, ENVS)
        assert set(action.flatten().tolist()) == set(range(CHOICES))


@every_agent_with("noise_frames")
def test_exploration_noise_follows_its_schedule(case: Case) -> None:
    agent = case.make(noise_start=0.2, noise_end=0.0, noise_frames=1000)
    observation = torch.randn(1000, OBSERVATION)
    agent.policy.eval()
    greedy = act(agent, observation)
    agent.policy.train()
    noise = act(agent, observation) - greedy
    assert noise.std().item() == pytest.approx(0.2, rel=0.1)
    assert torch.equal(act(agent, observation), greedy)  # the schedule is over


@every_agent_with("epsilon_frames")
def test_epsilon_follows_its_schedule(case: Case) -> None:
    agent = case.make(
        epsilon_start=1.0,
        epsilon_end=0.0,
        epsilon_frames=1000,
        # Nearly greedy apart from epsilon.
        noisy=False,
        acting_fractions=500,
    )
    observation = torch.randn(1000, OBSERVATION)

    def changed() -> float:
        return (act(agent, observation) != greedy).float().mean().item()

    agent.policy.eval()
    greedy = act(agent, observation)
    assert changed() == 0.0
    agent.policy.train()
    assert changed() == pytest.approx(1.0 - 1.0 / CHOICES, abs=0.05)
    assert changed() < 0.05  # the schedule is over
