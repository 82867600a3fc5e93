from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from tests.helpers.environments import IdentityWorld
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.environments.specs import observation_spec
from trainers.evaluation import evaluate

CPU = torch.device("cpu")


class Identity(nn.Module):
    """Acts what it observes, give or take a constant."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        return (observation["observation"] + self.error).clamp(-1, 1)


def policy_for(world: IdentityWorld, error: float = 0.0) -> PolicyWrapper:
    return PolicyWrapper(Identity(error), observation_spec(world), world.action_spec, CPU)


@pytest.mark.parametrize("episodes", [1, 5, 16, 37])
def test_a_perfect_policy(episodes: int) -> None:
    world = IdentityWorld(num_envs=16)
    result = evaluate(world, policy_for(world), CPU, episodes=episodes)
    assert result.episodes == episodes
    assert result.success == 1.0
    assert result.success_high == pytest.approx(1.0)
    assert result.success_low is not None
    assert 0.2 <= result.success_low < 1.0
    assert result.mean_return == 0.0
    assert result.mean_length == world.max_episode_steps


def test_short_episodes_are_not_favoured() -> None:
    """Whichever episodes end first would be the short ones: all worlds must have their share."""
    world = IdentityWorld(num_envs=64, max_episode_steps=50, terminates_above=0.8)
    result = evaluate(world, policy_for(world), CPU, episodes=640)
    # An episode ends with probability 0.1 at each step: (1 - 0.9^50) / 0.1 steps in the mean.
    assert result.mean_length == pytest.approx((1 - 0.9**50) / 0.1, rel=0.1)


def test_the_same_seed_gives_the_same_episodes_and_the_mode_is_left_as_it_was() -> None:
    world = IdentityWorld()
    policy = policy_for(world, error=0.3).train()
    first, second, third = (
        evaluate(world, policy, CPU, episodes=20, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != third
    assert policy.training


def test_a_world_without_success_is_scored_by_its_return() -> None:
    class Silent(IdentityWorld):
        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            return super()._step(tensordict).exclude("success")

        def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
            return super()._reset(tensordict).exclude("success")

    world = Silent()
    del world.observation_spec["success"]
    world.observation_spec = observation_spec(world)
    result = evaluate(world, policy_for(world, error=0.5), CPU, episodes=4)
    assert result.success is None
    assert result.score == result.mean_return < 0.0
    assert set(result.as_metrics()) == {"evaluation/return", "evaluation/length"}


def test_an_episode_beyond_those_asked_for_spoils_no_mean() -> None:
    class Diverging(IdentityWorld):
        """Its second episode, longer than the first, ends in numbers that are none."""

        steps_done = 0

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            self.steps_done += 1
            after = super()._step(tensordict)
            if self.steps_done > self.max_episode_steps:
                after["reward"].fill_(float("nan"))
            return after

    world = Diverging()
    result = evaluate(world, policy_for(world), CPU, episodes=16)
    assert world.steps_done > world.max_episode_steps
    assert result.mean_return == 0.0
