"""Recorded datasets: the episodes that an evaluation plays, of every robot."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.untrained import RandomAgent, ZeroAgent
from envs import MarineNavEnv
from tests.helpers.environments import IdentityEnv, MatchEnv
from torchrl_gpu.datasets.dataset import open_dataset
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.record import record
from trainers.run import run, settings_of

pytest.importorskip("minari", "0.5.4")  # needs Python 3.11

CPU = torch.device("cpu")
STEPS = 8


def policy_for(env: Any, agent: Any = RandomAgent) -> Any:
    torch.manual_seed(0)
    return agent(observation_spec(env), action_spec(env), CPU)


@pytest.mark.parametrize("format", ["minari", "lerobot"])
def test_the_episodes_are_those_of_an_evaluation(format: Any, tmp_path: Path) -> None:
    env = IdentityEnv(num_envs=4, max_episode_steps=STEPS, terminates_above=0.9)
    policy = policy_for(env)
    made = record(env, policy, CPU, tmp_path, seed=3, episodes=10, format=format)
    episodes = list(open_dataset(made.path))
    assert made.path.parent == tmp_path
    assert (made.episodes, made.transitions) == (10, sum(map(len, episodes)))
    assert len(episodes) == 10
    torch.manual_seed(0)
    assert made.evaluation == evaluate(env, policy, CPU, episodes=10, seed=3)
    returns = torch.stack([each.reward.sum() for each in episodes])
    assert returns.mean().item() == pytest.approx(made.evaluation.mean_return, rel=1e-5)
    for each in episodes:
        assert each.success is not None
        observed = each.observations["observation"]
        assert torch.equal(each.reward, -(each.action - observed[:-1]).square().sum(1))
        assert torch.equal(each.terminated, observed[1:, 0] > 0.9)
        assert (each.terminated | each.truncated).tolist() == [False] * (len(each) - 1) + [True]
        assert bool(each.truncated[-1]) == (len(each) == STEPS and not each.terminated[-1])


def test_discrete_actions_are_row_numbers(tmp_path: Path) -> None:
    env = MatchEnv(num_envs=2)
    made = record(env, policy_for(env), CPU, tmp_path, episodes=4, path=tmp_path / "mine")
    assert made.path == tmp_path / "mine"
    for each in open_dataset(made.path):
        assert each.action.dtype == torch.int64
        wanted = each.observations["observation"][:-1].argmax(1)
        assert torch.equal(each.reward, (each.action == wanted).float())


def test_each_robot_has_episodes_of_its_own(tmp_path: Path) -> None:
    env = MarineNavEnv(num_envs=2, num_robots=3, mode="eval", max_episode_steps=30)
    made = record(env, policy_for(env, ZeroAgent), CPU, tmp_path, episodes=2)
    episodes = list(open_dataset(made.path))
    assert made.episodes == len(episodes) == 2 * 3
    for each in episodes:
        assert (each.terminated | each.truncated).tolist() == [False] * (len(each) - 1) + [True]
        assert set(each.observations) == set(policy_for(env).in_keys)


def test_mode_record_takes_the_settings_of_the_command(tmp_path: Path) -> None:
    command = ("mode=record", "agent=random", "env=gym", "env.name=CartPole-v1", "device=cpu")
    outcome = run(*command, "record.episodes=3", f"runs={tmp_path}")
    assert outcome.dataset is not None
    assert outcome.dataset.parent.name == "datasets"
    assert len(list(open_dataset(outcome.dataset))) == outcome.evaluation.episodes == 3
    assert str(outcome.dataset) in outcome.report
    again = run(*command, "record.episodes=3", f"record.path={tmp_path / 'again'}")
    assert again.evaluation == outcome.evaluation


def test_settings_of_a_recording_are_refused_in_one_line(tmp_path: Path) -> None:
    command = ("mode=record", "agent=random", "env=fanuc", f"runs={tmp_path}")
    with pytest.raises(ConfigurationError, match=re.escape("record.format=csv: input should be")):
        settings_of(*command, "record.format=csv")
    with pytest.raises(ConfigurationError, match=r"record\.episodes=0"):
        settings_of(*command, "record.episodes=0")
    with pytest.raises(ConfigurationError, match="it exists; choose another folder"):
        run(*command, f"record.path={tmp_path}")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot write to .*file: Not a directory"):
        run(*command, f"record.path={tmp_path / 'file' / 'data'}")
    with pytest.raises(ConfigurationError, match=r"cannot write .*: File name too long"):
        run(*command, f"record.path={tmp_path / ('x' * 300)}")
    with pytest.raises(ConfigurationError, match="mode=record needs a trained policy"):
        settings_of("mode=record", "agent=sac", "env=fanuc")
