"""Environments of this library in rsl_rl."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from envs.fanuc import FanucEnv
from envs.marinenav import MarineNavEnv
from tests.helpers.environments import IdentityEnv, MatchEnv
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.rsl_rl import RslRlEnv

KEYS = {"actor": ["observation"], "critic": ["observation"]}


def sea(**settings: Any) -> MarineNavEnv:
    return MarineNavEnv(num_robots=1, **settings)


@pytest.mark.parametrize("build", [FanucEnv, sea])
def test_its_runner_trains(build: Callable[..., Environment]) -> None:
    runners: Any = pytest.importorskip(
        "rsl_rl.runners", reason="the extra `rsl_rl` is not installed"
    )
    network = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"}
    normal = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    settings = {
        "num_steps_per_env": 12,
        "save_interval": 100,
        "obs_groups": KEYS,
        "actor": {**network, "distribution_cfg": normal},
        "critic": network,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
    }
    settings["algorithm"] |= {"rnd_cfg": None, "symmetry_cfg": None}  # type: ignore[operator]
    env = RslRlEnv(build(num_envs=8, max_episode_steps=5))
    runner = runners.OnPolicyRunner(env, settings, device="cpu")
    actor = copy.deepcopy(runner.alg.actor.state_dict())
    runner.learn(2)
    learned = runner.alg.actor.state_dict()
    assert any((actor[name] != learned[name]).any() for name in actor)
    env.close()


def test_time_limits_and_lengths_are_reported() -> None:
    env = RslRlEnv(sea(num_envs=3, max_episode_steps=2))
    for step, ends in enumerate([False, True, False]):
        observation, reward, done, extras = env.step(torch.full((3, 2), 5.0))  # beyond the bounds
        assert observation["observation"].shape == (3, 7)
        assert reward.shape == done.shape == (3,)
        assert done.tolist() == extras["time_outs"].tolist() == [ends] * 3
        assert env.episode_length_buf.tolist() == [(step + 1) % 2] * 3
    env.close()


class _EndingTwice(IdentityEnv):
    """Terminates and truncates every episode in its first step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        ends = torch.ones_like(self.steps, dtype=torch.bool)
        names = ("terminated", "truncated", "done")
        return super()._step(tensordict).update(dict.fromkeys(names, ends))


def test_a_termination_at_the_time_limit_is_not_a_time_out() -> None:
    env = RslRlEnv(_EndingTwice(num_envs=3))
    _, _, done, extras = env.step(torch.zeros(3, 2))
    assert done.all()
    assert not extras["time_outs"].any()


def test_other_environments_are_refused() -> None:
    for env in (MatchEnv(), MarineNavEnv(num_envs=2, num_robots=3)):
        with pytest.raises(ConfigurationError, match="one robot with continuous actions"):
            RslRlEnv(env)
