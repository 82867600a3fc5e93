"""Recorded episodes of the reference environment, replayed step by step."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrl.envs.utils import step_mdp

from envs.marinenav import MarineNavEnv
from tests.envs.marinenav.test_env import motion

GOLDEN = Path(__file__).with_name("golden.json.gz")


def _episodes() -> list[dict[str, Any]]:
    episodes: list[dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))["episodes"]
    return episodes


def _actions(env: MarineNavEnv, episodes: list[dict[str, Any]], step: int) -> Tensor:
    actions = env.action_spec.zero()["robots", "action"]
    for sea, episode in enumerate(episodes):
        for robot, action in enumerate(episode["actions"][step]):
            if action is not None:
                continuous = episode["continuous"]
                row = actions.new_tensor(action) if continuous else env.discrete_actions[action]
                actions[sea, robot] = row
    return actions


def _compare(seen: Any, recorded: list[Any], tolerance: float) -> None:
    """Compare the observations of the robots of one sea with the recorded ones."""
    for robot, rows in enumerate(recorded):
        if rows is None:
            continue
        own, objects = (torch.tensor(part, dtype=seen["observation"].dtype) for part in rows)
        torch.testing.assert_close(seen["observation"][robot], own, rtol=0, atol=tolerance)
        count = len(objects)
        assert seen["objects_mask"][robot].tolist() == [True] * count + [False] * (5 - count)
        expected = torch.zeros_like(seen["objects"][robot])
        expected[:count] = objects.reshape(count, 5)
        torch.testing.assert_close(seen["objects"][robot], expected, rtol=0, atol=tolerance)


def test_every_step_equals_the_reference() -> None:
    episodes = _episodes()
    env = MarineNavEnv.from_scenarios(episodes, dtype="float64", noise=False)
    now = env.reset()
    for sea, episode in enumerate(episodes):
        _compare(now["robots"][sea], episode["observations"][0], 1e-9)
    for step in range(len(episodes[0]["actions"])):
        now["robots", "action"] = torch.as_tensor(_actions(env, episodes, step))
        stepped = env.step(now)["next", "robots"]
        for sea, episode in enumerate(episodes):
            robots = slice(0, episode["num_robots"])
            _compare(stepped[sea], episode["observations"][step + 1], 1e-9)
            for name, observed in (
                ("state", motion(env)[sea, robots]),
                ("reward", stepped["reward"][sea, robots, 0]),
            ):
                expected = torch.tensor(episode[name][step], dtype=torch.float64)
                torch.testing.assert_close(observed, expected, rtol=0, atol=1e-9)
            assert stepped["done"][sea, robots, 0].tolist() == episode["done"][step]
            active = [not done for done in episode["done"][step]]
            assert stepped["active"][sea, robots, 0].tolist() == active
        now = step_mdp(now)


def test_float32_stays_close_to_the_reference() -> None:
    episodes = _episodes()[:2]
    env = MarineNavEnv.from_scenarios(episodes, dtype="float32", noise=False)
    now = env.reset()
    for step in range(20):
        now["robots", "action"] = _actions(env, episodes, step)
        now = step_mdp(env.step(now))
    for sea, episode in enumerate(episodes):
        state = motion(env)[sea, : episode["num_robots"]].double()
        expected = torch.tensor(episode["state"][19], dtype=torch.float64)
        torch.testing.assert_close(state, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("normalize", [False, True])
def test_episodes_do_not_depend_on_the_batch(normalize: bool) -> None:
    episodes = _episodes()[1:5]
    together = MarineNavEnv.from_scenarios(episodes, noise=False, normalize=normalize)
    alone = MarineNavEnv.from_scenarios(episodes[:1], noise=False, normalize=normalize)
    first, second = together.reset(), alone.reset()
    robots = slice(0, episodes[0]["num_robots"])
    for key in ("observation", "objects", "objects_mask", "active"):
        mine, others = first["robots", key][0, robots], second["robots", key][0]
        torch.testing.assert_close(mine, others)
    assert not first["robots", "active"][0, robots.stop :].any()
