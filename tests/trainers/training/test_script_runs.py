"""Runs of a trainer that a script builds, on the command line."""

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from torchrl.envs import RewardScaling, TransformedEnv

from agents import DQN, SAC
from agents.modules.encoders import ObservationEncoderFactory
from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from tests.helpers.agents import build_for
from tests.helpers.program import Call
from tests.helpers.training import train_briefly
from torchrl_gpu.checkpoints.state_file import load_state
from trainers import load_policy

ENV = ["env=gym", "env.name=CartPole-v1", "env.num_envs=2", "device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose agent has settings other than the defaults."""
    path = tmp_path_factory.mktemp("mine")
    with closing(GymnasiumEnv(name="CartPole-v1", num_envs=2)) as env:
        encoder = ObservationEncoderFactory(vector_features=6)
        agent = build_for(env, DQN, hidden_sizes=[7], encoder=encoder, gamma=0.9)
        train_briefly(env, agent, path, total_frames=64, random_frames=32).close()
    return path


def test_agent_and_trainer_are_recorded(folder: Path) -> None:
    state = load_state(folder / "checkpoints" / "frames_000000000064.safetensors")
    agent, trainer = state["config"]["agent"], state["config"]["trainer"]
    assert agent["_target_"] == "agents.dqn.DQN"
    assert (agent["hidden_sizes"], agent["gamma"]) == ([7], 0.9)
    assert agent["encoder"]["vector_features"] == 6
    assert (trainer["random_frames"], trainer["loggers"]) == (32, ["csv"])
    assert "vector_features: 6" in (folder / "config.yaml").read_text()
    observation = torch.zeros(4)
    assert torch.as_tensor(load_policy(folder).predict(observation)).shape == ()


def test_summary_of_a_script_has_the_best_evaluation(tmp_path: Path) -> None:
    make = partial(GymnasiumEnv, name="CartPole-v1")
    with closing(make(num_envs=2)) as env, closing(make(num_envs=3)) as other:
        agent = build_for(env, DQN, hidden_sizes=[7])
        settings = {"evaluation_env": other, "evaluation_episodes": 3, "evaluation_interval": 64}
        trainer = train_briefly(env, agent, tmp_path, total_frames=192, seed=5, **settings)
    summary = json.loads((tmp_path / "summary.json").read_text())
    expected = {"agent": "DQN", "env": "GymnasiumEnv", "seed": 5, "frames": 192, "episodes": 3}
    assert summary.items() >= expected.items()
    assert summary["mean_return"] == max(e.mean_return for e in trainer.evaluations.values())
    assert len(trainer.evaluations) == 3


def test_summary_without_evaluations_has_no_result(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["frames"] == 64
    assert "mean_return" not in summary


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("mode=eval evaluation.episodes=2", "evaluations/*.json"),
        ("mode=demo demo.episodes=1", "videos/*.mp4"),
        ("trainer.total_frames=96 evaluation.episodes=2", "checkpoints/*096.safetensors"),
    ],
)
def test_a_run_of_a_script_is_evaluated_filmed_and_resumed(
    arguments: str, written: str, folder: Path, tmp_path: Path, program: Call
) -> None:
    own = shutil.copytree(folder, tmp_path / "mine")
    typed = [*shlex.split(arguments), f"checkpoint={own}"]
    assert program(*typed, *ENV).code == 0
    assert len(list(own.glob(written))) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "env= is missing, because {file} does not name it; choose one of: fanuc, gym, "),
        ([*ENV, "agent=ppo"], "{file} was trained with agent=agents.dqn.DQN; leave out agent="),
        (["env=fanuc", "device=cpu"], "it belongs to another environment"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    arguments: list[str], said: str, folder: Path, program: Call
) -> None:
    file = folder / "checkpoints" / "frames_000000000064.safetensors"
    line = program("mode=eval", f"checkpoint={file}", *arguments).refusal()
    assert said.format(file=file) in line


@pytest.fixture
def arms() -> Iterator[FanucEnv]:
    with closing(FanucEnv(num_envs=2, num_workers=1)) as env:
        yield env


def test_a_run_with_transforms_resumes_in_its_script_alone(
    arms: FanucEnv, tmp_path: Path, program: Call
) -> None:
    env = TransformedEnv(arms, RewardScaling(loc=0.0, scale=0.5))
    train_briefly(env, build_for(env, SAC), tmp_path / "mine", total_frames=8, random_frames=0)
    arguments = ("env=fanuc", "env.num_envs=2", "env.num_workers=1", "device=cpu")
    line = program(f"checkpoint={tmp_path / 'mine'}", *arguments).refusal()
    assert line.endswith("transforms; resume the run in the script that built it")
