"""Environments of this library in the algorithms of Stable-Baselines3."""

import importlib
import importlib.util
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from torchrl_gpu.environments.captions import LINE_HEIGHT
from torchrl_gpu.errors import ConfigurationError

sb3 = pytest.importorskip("stable_baselines3", reason="the extra `sb3` is not installed")
vec_env = importlib.import_module("stable_baselines3.common.vec_env")
StableBaselinesEnv = importlib.import_module("torchrl_gpu.stable_baselines").StableBaselinesEnv

FANUC = "torchrl_gpu.gymnasium:torchrl_gpu/Fanuc-v0"
MARINENAV = "torchrl_gpu.gymnasium:torchrl_gpu/MarineNav-v0"


@pytest.mark.parametrize(
    ("algorithm", "policy", "name", "settings"),
    [
        ("SAC", "MlpPolicy", FANUC, {}),
        ("DQN", "MlpPolicy", FANUC, {"discrete": True}),
        ("PPO", "MultiInputPolicy", MARINENAV, {}),
        ("PPO", "MultiInputPolicy", MARINENAV, {"num_robots": 2}),
    ],
)
def test_an_algorithm_trains(
    algorithm: str, policy: str, name: str, settings: dict[str, Any]
) -> None:
    envs = gymnasium.make_vec(name, num_envs=8, max_episode_steps=10, **settings)
    env = vec_env.VecMonitor(StableBaselinesEnv(envs))
    own: dict[str, Any] = {"n_steps": 32} if algorithm == "PPO" else {"learning_starts": 40}
    model = getattr(sb3, algorithm)(policy, env, seed=0, device="cpu", **own)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(320)
    assert any((old != new).any() for old, new in zip(before, model.policy.parameters()))  # noqa: B905
    assert len(model.ep_info_buffer) >= 8
    assert len(model.ep_success_buffer) >= 8
    env.close()


def test_the_end_of_an_episode_has_its_last_observation_and_a_new_one_begins() -> None:
    envs = gymnasium.make_vec(FANUC, num_envs=2, max_episode_steps=3)
    env = StableBaselinesEnv(envs)
    assert env.seed(5) == [5, 6]
    first = env.reset()
    env.seed(5)
    assert np.array_equal(env.reset(), first)
    still = np.zeros((2, 6), np.float32)
    for _ in range(2):
        *_, done, infos = env.step(still)
        assert not done.any()
        assert infos == [{}, {}]
    observation, _, done, infos = env.step(still)
    assert done.all()
    for index, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True
        assert info["is_success"] is False
        assert not np.array_equal(info["terminal_observation"], observation[index])
    env.close()


def test_pictures_of_all_environments_are_one() -> None:
    env = StableBaselinesEnv(gymnasium.make_vec(MARINENAV, num_envs=4, render_mode="rgb_array"))
    env.reset()
    assert env.render().shape == (2 * (LINE_HEIGHT + 720), 1440, 3)
    env.close()


def test_an_environment_that_resets_later_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it has to be SAME_STEP"):
        StableBaselinesEnv(gymnasium.make_vec("CartPole-v1", num_envs=2))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchrl_gpu.stable_baselines")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "torchrl-gpu\[sb3\]"'):
        importlib.import_module("torchrl_gpu.stable_baselines")
