"""Resuming a run: to the same bytes, or in an environment whose state cannot be saved."""

import logging
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Unbounded

from agents import PPO, SAC
from benchmarks.fixture import stop_after
from envs.gym import GymnasiumEnv
from tests.envs.gym.environments import MODULE, Unrepeatable
from tests.helpers.agents import CASES, Case, build_for
from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import result_of
from tests.helpers.memory import needs_peak, peak_memory
from tests.helpers.training import assert_same_checkpoints, metric_rows, trainer_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError
from trainers.metrics import read
from trainers.run import run
from trainers.runs.policy_files import LAYOUT, load_checkpoint
from trainers.training.trainer import TorchRLTrainer

EPISODE = 12


def make_trainer(folder: Path, total_frames: int, agent_class: Any = PPO) -> TorchRLTrainer:
    """Return a trainer of four pendulums with short episodes, whose state cannot be saved."""
    torch.manual_seed(0)
    options = {"max_episode_steps": EPISODE}
    # Only in mode `train` are episodes recorded.
    env = GymnasiumEnv(name="Pendulum-v1", num_envs=4, options=options, mode="eval")
    agent = build_for(env, agent_class, rollout_length=8, normalize_rewards=True, gamma=0.9)
    intervals = {"checkpoint_interval": 4 * 10, "log_interval": 4 * EPISODE}
    return trainer_of(
        env, agent, folder, total_frames=total_frames, random_frames=4 * 4, **intervals
    )


def interrupted_and_loaded(folder: Path, agent_class: Any = PPO) -> TorchRLTrainer:
    """Return a trainer that has loaded a checkpoint from the middle of an episode."""
    make_trainer(folder, total_frames=4 * 10, agent_class=agent_class).train()
    resumed = make_trainer(folder, total_frames=4 * 60, agent_class=agent_class)
    resumed.load(find_checkpoint(resumed.folder))
    return resumed


def test_new_episodes_are_announced_and_exclude_steps_before_the_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        resumed = interrupted_and_loaded(tmp_path)
    assert "GymnasiumEnv: no open episodes are saved; new ones begin" in caplog.messages
    for _ in range(EPISODE):
        resumed.collect()
    assert read(resumed.episodes.take())["episode/length"] == EPISODE


def test_new_episodes_differ_from_the_first_episodes_of_the_run(tmp_path: Path) -> None:
    first = make_trainer(tmp_path / "first", 4 * 8).collect()["observation"].clone()
    resumed = interrupted_and_loaded(tmp_path / "run").collect()["observation"]
    assert not torch.isclose(first, resumed).all(1).any()


def test_rollout_excludes_steps_of_abandoned_episodes(tmp_path: Path) -> None:
    resumed = interrupted_and_loaded(tmp_path)
    rollouts: list[Any] = []
    agent: Any = resumed.agent
    prepare = agent.prepare

    def record(rollout: Any) -> Any:
        rollouts.append(rollout.clone())
        return prepare(rollout)

    agent.prepare = record
    for _ in range(8):
        assert not rollouts
        resumed.experience.store(resumed.collect())
        list(resumed.experience.batches())
    (rollout,) = rollouts
    following = rollout["next", "observation"][:-1]
    assert torch.equal(rollout["observation"][1:], following)


def test_reward_normalizer_resets_its_returns(tmp_path: Path) -> None:
    resumed = interrupted_and_loaded(tmp_path)
    assert isinstance(resumed.agent, PPO)
    assert resumed.agent.reward_normalizer is not None
    assert (resumed.agent.reward_normalizer.discounted == 0.0).all()
    assert resumed.agent.reward_normalizer.moments.count > 0


def make_exact(folder: Path, case: Case, **settings: Any) -> TorchRLTrainer:
    """Return a trainer of three Gymnasium environments with short episodes."""
    torch.manual_seed(0)
    name = "Pendulum-v1" if case.actions == "continuous" else "CartPole-v1"
    env = GymnasiumEnv(
        **{"name": name, "num_envs": 3, "options": {"max_episode_steps": EPISODE}, **settings}
    )
    agent = build_for(env, case.agent_class, hidden_sizes=[8, 8], batch_size=16, rollout_length=8)
    lengths = {"total_frames": 3 * 60, "random_frames": 3 * 8, "replay_capacity": 3 * 40}
    return trainer_of(env, agent, folder, log_interval=3 * EPISODE, **lengths)


def check_exact(folder: Path, case: Case, **settings: Any) -> None:
    """Stop and resume a run twice in the middle of episodes; compare it with one that goes on."""
    whole = make_exact(folder / "whole", case, **settings)
    whole.train()
    for steps in (19, 37, 100):
        part = make_exact(folder / "parts", case, **settings)
        if (latest := part.checkpoints.latest()) is not None:
            part.load(latest)
        stop_after(part, 3 * steps)
        part.train()
    assert part.frames == part.total_frames
    assert_same_checkpoints(whole, part)
    assert metrics(whole) == metrics(part)


def metrics(trainer: TorchRLTrainer) -> list[dict[str, str]]:
    """Return the rows of metrics without times."""
    rows = metric_rows(trainer.folder)
    times = ("seconds", "frames_per_second", "system/")
    return [{name: row[name] for name in row if not name.startswith(times)} for row in rows]


@pytest.mark.parametrize(
    ("case", "autoreset"),
    [*zip(CASES, cycle(["disabled", "same_step", "next_step"]), strict=False)],
    ids=str,
)
def test_gymnasium_resumes_to_the_same_bytes(case: Case, autoreset: str, tmp_path: Path) -> None:
    check_exact(tmp_path, case, autoreset=autoreset)


@pytest.mark.parametrize(
    ("case", "autoreset"),
    [
        (Case(SAC, "continuous"), "disabled"),
        (Case(PPO, "discrete"), "same_step"),
        pytest.param(Case(SAC, "continuous"), "next_step", marks=pytest.mark.slow),
        (Case(PPO, "discrete"), "next_step"),
    ],
    ids=str,
)
def test_processes_resume_to_the_same_bytes(case: Case, autoreset: str, tmp_path: Path) -> None:
    check_exact(tmp_path, case, vectorization="async", autoreset=autoreset)


def test_a_run_goes_on_where_the_simulator_does_not_repeat_its_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"name": f"{MODULE}:Unrepeatable-v0", "options": {"kind": "another_reward"}}
    case = Case(PPO, "discrete")
    part = make_exact(tmp_path, case, **settings)
    stop_after(part, 3 * 20)  # an episode has three to five steps
    part.train()
    monkeypatch.setattr(Unrepeatable, "runs", 1)
    resumed = make_exact(tmp_path, case, **settings)
    resumed.load(resumed.checkpoints.path(part.frames))
    assert "does not repeat the saved episodes exactly: new episodes begin" in caplog.text
    resumed.train()
    assert resumed.frames == resumed.total_frames


def test_new_episodes_after_a_failed_step_are_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(PPO, "discrete")
    part = make_exact(tmp_path, case)
    stop_after(part, 3 * 19)
    part.train()
    part.env._has_failed = True
    resumed = make_exact(tmp_path, case)
    with caplog.at_level(logging.INFO):
        resumed.load(part.save())
    assert "GymnasiumEnv: no open episodes are saved; new ones begin" in caplog.messages


class WideEnv(IdentityEnv):
    """Observes many more numbers than matter."""

    def __init__(self) -> None:
        super().__init__(16)
        wide = Unbounded((16, 10_000))
        self.observation_spec["observation"] = wide

    def _widened(self, tensordict: TensorDict) -> TensorDict:
        narrow = tensordict["observation"]
        return tensordict.set("observation", narrow.repeat(1, 5_000))

    def _reset(self, tensordict: TensorDictBase | None, **_: object) -> TensorDict:
        return self._widened(super()._reset(tensordict))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        return self._widened(super()._step(tensordict))


def wide_trainer(folder: Path) -> TorchRLTrainer:
    """Return a trainer whose replay takes 100 MB."""
    env = WideEnv()
    agent = build_for(env, SAC, hidden_sizes=[4], batch_size=16)
    lengths = {"total_frames": 2_560, "random_frames": 2_480, "replay_capacity": 2_600}
    return trainer_of(env, agent, folder, **lengths)


@needs_peak
def test_resuming_reads_the_replay_without_a_second_copy(tmp_path: Path) -> None:
    wide_trainer(tmp_path).train()

    def more_memory() -> int:
        trainer = wide_trainer(tmp_path)
        newest = find_checkpoint(trainer.folder)
        before = peak_memory()
        trainer.load(newest)
        experience: Any = trainer.experience
        assert len(experience.replay) > 2_000
        return peak_memory() - before

    # The replay of 99 MiB, and a piece of 32 MiB.
    assert result_of(more_memory) < (1.1 * 99 + 40) * 2**20


def test_no_transition_connects_an_old_and_a_new_episode(tmp_path: Path) -> None:
    resumed = interrupted_and_loaded(tmp_path, SAC)
    resumed.train()
    replay: Any = resumed.experience
    batch = replay.replay.sample(2000)
    # A pendulum turns by less than half a radian per step.
    angle = torch.atan2(batch["observation"][:, 1], batch["observation"][:, 0])
    later = torch.atan2(batch["next", "observation"][:, 1], batch["next", "observation"][:, 0])
    turn = (later - angle + torch.pi) % (2 * torch.pi) - torch.pi
    assert turn.abs().max() <= 0.41


SHORT = [
    *("device=cpu", "threads=1", "env.num_envs=4", "agent.rollout_length=16"),
    *("agent.batch_size=64", "agent.epochs=1", "trainer.log_interval=64"),
    "trainer.evaluation_interval=256",
    *("trainer.evaluation_episodes=3", "evaluation.episodes=5"),
]


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of PPO with its tuned settings: normalized rewards, decaying learning rate."""
    arguments = ("agent=ppo", "env=gym", "env.name=Pendulum-v1", "trainer.total_frames=256")
    return run(*arguments, *SHORT, f"runs={tmp_path_factory.mktemp('pendulum')}").folder


def test_longer_run_decays_its_learning_rate_over_all_frames(pendulum: Path) -> None:
    run(f"checkpoint={pendulum}", "trainer.total_frames=512", "device=cpu")
    rates = {
        int(row["frames"]): float(row["ppo/learning_rate"])
        for row in metric_rows(pendulum)
        if row["ppo/learning_rate"]
    }
    assert rates[256] < 1e-9
    assert rates[320] == pytest.approx(2e-3 * (1 - 320 / 512), rel=1e-3)


@pytest.mark.parametrize(
    ("mode", "setting"), [("eval", "evaluation.num_envs=3"), ("demo", "demo.episodes=1")]
)
def test_policy_acts_in_any_number_of_environments(pendulum: Path, mode: str, setting: str) -> None:
    short = "env.options.max_episode_steps=5"
    run(f"mode={mode}", f"checkpoint={pendulum}", setting, short, "device=cpu")


def test_checkpoint_of_another_layout_is_refused(pendulum: Path, tmp_path: Path) -> None:
    state = load_state(find_checkpoint(pendulum))
    save_state(tmp_path / "old.safetensors", {**state, "layout": LAYOUT - 1})
    with pytest.raises(ConfigurationError, match=f"in layout {LAYOUT - 1}; .* layout {LAYOUT}"):
        load_checkpoint(tmp_path / "old.safetensors")
