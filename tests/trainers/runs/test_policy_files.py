import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agents import DQN, SAC
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import build
from tests.helpers.program import Call
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.environments.specs import action_bounds, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.run import run
from trainers.runs.policy_files import load_policy, restore_policy, save_policy

SHORT = [
    *("device=cpu", "env=marinenav", "env.num_envs=4", "env.num_robots=2", "env.num_obstacles=0"),
    *("env.max_episode_steps=20", "agent.hidden_sizes=[16,16]", "trainer.total_frames=80"),
    *("trainer.random_frames=40", "trainer.replay_capacity=1000", "trainer.evaluation_episodes=4"),
    *("evaluation.episodes=4", "trainer.loggers=[csv]"),
]


@pytest.fixture(scope="module", params=["sac", "dqn"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an agent with continuous actions, and one with discrete actions."""
    outcome = run(f"agent={request.param}", *SHORT, f"runs={tmp_path_factory.mktemp('runs')}")
    assert outcome.best is not None
    return outcome.best


@pytest.fixture(scope="module")
def policy(checkpoint: Path) -> Path:
    path = checkpoint.parent.parent / "shipped" / "policy.safetensors"
    save_policy(checkpoint, path)
    return path


def test_policy_file_acts_like_its_checkpoint_and_is_smaller(
    checkpoint: Path, policy: Path
) -> None:
    whole, small = load_policy(checkpoint), load_policy(policy)
    observation = whole.interface.observation_spec.rand()
    one, other = (loaded.predict(observation.to_dict()) for loaded in (whole, small))
    assert isinstance(one, Tensor)
    assert one.shape == (1, 2)
    assert torch.equal(one, torch.as_tensor(other))
    assert policy.stat().st_size < checkpoint.stat().st_size / 4


def test_the_file_describes_observations_and_actions(policy: Path) -> None:
    interface = load_policy(policy).interface
    env = MarineNavEnv(num_envs=3, num_robots=2, num_obstacles=0)
    assert list(interface.leaves) == list(observation_spec(env).keys())
    for name, leaf in interface.leaves.items():
        assert leaf.shape[1:] == observation_spec(env)[name].shape[1:]
        assert leaf.dtype == observation_spec(env)[name].dtype
    assert interface.step_seconds == env.capabilities.step_seconds == 0.5
    assert interface.units == {"action": "1,000 N/s"}
    if interface.action_table is None:
        low, high = action_bounds(interface.action_spec)
        assert (low.tolist(), high.tolist()) == ([-1.0, -1.0], [1.0, 1.0])
    else:
        assert torch.equal(interface.action_table, env.discrete_actions)


@pytest.mark.slow
def test_policy_file_is_evaluated_and_filmed_like_a_checkpoint(
    policy: Path, tmp_path: Path, program: Call
) -> None:
    shown = [f"checkpoint={policy}"]
    said = program("mode=eval", *shown, "evaluation.episodes=4").report()
    film = ["mode=demo", *shown, "demo.episodes=1", "demo.num_envs=4", "demo.speed=10"]
    said += program(*film).report()
    # The folder of a policy file may be read-only, so that its results are written elsewhere.
    assert list(policy.parent.iterdir()) == [policy]
    for kind, least in (("evaluations/*.json", 100), ("videos/*.mp4", 1000)):
        (path,) = tmp_path.glob(f"runs/marinenav/*/policy/{kind}")
        assert path.stat().st_size > least
        assert str(path.relative_to(tmp_path)) in said


def test_read_only_run_can_be_evaluated(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    folder = checkpoint.parent.parent
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    assert program("mode=eval", f"checkpoint={folder}").code == 0
    assert list(tmp_path.glob(f"runs/marinenav/*/{folder.name}/evaluations/*.json"))
    assert sorted(folder.rglob("*")) == before


def test_the_error_of_a_damaged_checkpoint_names_the_newest_that_can_be_read(
    checkpoint: Path, tmp_path: Path
) -> None:
    older, whole, newest = (CheckpointFolder(tmp_path).path(frames) for frames in (1, 2, 3))
    for path in (older, whole, newest):
        shutil.copy(checkpoint, path)
    os.truncate(newest, 1000)
    with pytest.raises(ConfigurationError, match=f"damaged.*; .* can be read is {whole}$"):
        load_policy(tmp_path)
    older.unlink()
    os.truncate(whole, 1000)
    with pytest.raises(ConfigurationError, match=r"is not a checkpoint of torchrl-gpu$"):
        load_policy(tmp_path)


def test_a_policy_is_not_loaded_onto_a_missing_device() -> None:
    for device in ("cuda:99", torch.device("cuda", 99)):
        with pytest.raises(ConfigurationError, match=r"^device=cuda:99 is not available: .*cpu$"):
            load_policy("pretrained:fanuc/sac", device)


def test_resuming_from_a_policy_file_is_refused_before_anything_is_built(
    policy: Path, program: Call
) -> None:
    # Building this environment would fail: its map cannot hold so many robots.
    said = program(f"checkpoint={policy}", "env.num_robots=32").refusal()
    assert said.startswith(f"checkpoint={policy}: a policy file cannot resume")


def test_a_policy_in_other_units_is_reported(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = MarineNavEnv(num_envs=3, num_robots=2, num_obstacles=0)
    agent = load_policy(policy)
    agent_class = SAC if agent.interface.action_table is None else DQN
    spec = agent.interface.observation_spec, agent.interface.action_spec
    own = build(agent_class, *spec, hidden_sizes=(16, 16))
    caplog.clear()
    restore_policy(policy, own, env=env)
    assert not caplog.records
    env.capabilities = replace(env.capabilities, units={"action": "N/s"})
    restore_policy(policy, own, env=env)
    assert caplog.messages == ["action: the policy was trained with 1,000 N/s; this is N/s"]
    caplog.clear()
    restore_policy(policy, own, env=MarineNavEnv(num_envs=1, num_robots=2, normalize=False))
    assert caplog.messages == [
        f"{name}: the policy was trained with unnamed units; this is SI units"
        for name in ("observation", "objects")
    ]
