"""TorchRL's rollouts act by policies whose actions have gradients."""

from collections.abc import Callable

import pytest
import torch

from agents import SAC
from envs import FanucEnv, GymnasiumEnv
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec

CASES: dict[str, Callable[[], Environment]] = {
    "fanuc": lambda: FanucEnv(num_envs=2, num_workers=1),
    "gym": lambda: GymnasiumEnv(name="Pendulum-v1", num_envs=2),
}


@pytest.mark.parametrize("name", CASES)
def test_an_environment_outside_torch_takes_the_actions_without_their_gradients(name: str) -> None:
    env = CASES[name]()
    agent = SAC(observation_spec(env), action_spec(env), torch.device("cpu"))
    transitions = env.rollout(3, agent.policy)
    assert transitions["action"].requires_grad
    assert not transitions["next", "reward"].requires_grad
    env.close()
