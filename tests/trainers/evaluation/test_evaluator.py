import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from agents import SAC
from envs.gym import GymnasiumEnv
from tests.helpers.agents import build_for
from tests.helpers.environments import IdentityEnv
from tests.helpers.program import Call
from tests.helpers.ranks import on_ranks
from tests.helpers.training import before_each, trainer_of
from tests.trainers.evaluation.test_evaluation import policy_for
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.devices.seeding import stream_seed
from torchrl_gpu.processes import Processes
from trainers.evaluation.evaluation import Evaluation, evaluate
from trainers.evaluation.evaluator import Evaluator
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")


class ClosableEnv(IdentityEnv):
    """Records whether it was closed."""

    was_closed = False

    def close(self, *, raise_if_closed: bool = True) -> None:
        self.was_closed = True


class Builder:
    """Builds environments and records them."""

    def __init__(self) -> None:
        self.built: list[ClosableEnv] = []

    def __call__(self, num_envs: int) -> ClosableEnv:
        self.built.append(ClosableEnv(num_envs))
        return self.built[-1]

    @property
    def sizes(self) -> list[int]:
        return [env.batch_size.numel() for env in self.built]


@pytest.mark.parametrize(
    ("episodes", "num_envs", "limit", "built"),
    [
        (20, None, None, 20),
        (1000, None, None, 256),
        (1000, 300, None, 300),
        (20, 300, None, 20),
        (50, None, 8, 8),
        (50, 12, 8, 12),
    ],
)
def test_number_of_environments_follows_from_episodes_setting_and_limit(
    episodes: int, num_envs: int | None, limit: int | None, built: int
) -> None:
    build = Builder()
    evaluator = Evaluator(build, episodes=episodes, num_envs=num_envs, limit=limit)
    assert not build.built
    result = evaluator.evaluate(policy_for(IdentityEnv()), CPU, seed=0)
    assert result.episodes == episodes
    assert build.sizes == [built]


def test_environment_is_reused_while_its_size_fits() -> None:
    build = Builder()
    evaluator = Evaluator(build, episodes=40)
    policy = policy_for(IdentityEnv(), error=0.3)
    for episodes in (12, 12, None, None):
        found = evaluator.evaluate(policy, CPU, seed=3, episodes=episodes)
    assert build.sizes == [12, 40]
    assert [env.was_closed for env in build.built] == [True, False]
    assert found == evaluate(IdentityEnv(40), policy, CPU, episodes=40, seed=3)
    evaluator.close()
    assert build.built[-1].was_closed


def test_environments_are_built_for_the_share_of_a_process() -> None:
    def play(processes: Processes) -> tuple[Evaluation, list[int]]:
        build = Builder()
        evaluator = Evaluator(build, episodes=9)
        policy = policy_for(IdentityEnv())
        found = [
            evaluator.evaluate(policy, CPU, seed=processes.rank, episodes=n, processes=processes)
            for n in (None, 1)
        ]
        assert [each.episodes for each in found] == [9, 1]
        return found[0], build.sizes

    (one, sizes), (other, other_sizes) = on_ranks(2, play)
    assert one == other
    assert (sizes, other_sizes) == ([5, 1], [4, 1])


def test_environment_of_the_caller_stays_open() -> None:
    env = ClosableEnv(4)
    evaluator = Evaluator(env)
    evaluator.evaluate(policy_for(env), CPU, seed=0, episodes=8)
    evaluator.close()
    assert not env.was_closed


def test_progress_is_reported_up_to_the_last_episode() -> None:
    reports: list[int] = []
    env = IdentityEnv(4)
    evaluate(env, policy_for(env), CPU, episodes=40, progress=reports.append)
    assert reports == sorted(reports)
    assert len(reports) > 5
    assert reports[0] < 40
    assert reports[-1] == 40


@pytest.mark.parametrize(("vectorization", "built"), [("sync", 50), ("async", 3)])
def test_evaluation_starts_no_more_processes_than_training(vectorization: str, built: int) -> None:
    settings = {"name": "CartPole-v1", "num_envs": 3, "vectorization": vectorization}
    limit = GymnasiumEnv.capabilities_of(settings, CPU).max_evaluation_envs
    build = Builder()
    Evaluator(build, episodes=50, limit=limit).env  # noqa: B018
    assert build.sizes == [built]


def test_environments_whose_episodes_do_not_count_are_idle() -> None:
    env = IdentityEnv(4, terminates_above=0.5)
    with mock.patch.object(env, "set_idle") as set_idle:
        evaluate(env, policy_for(env), CPU, episodes=6)
    *during, after = (int(call.args[0].sum()) for call in set_idle.call_args_list)
    assert during == sorted(during)
    assert (during[0], during[-1], after) == (0, 4, 0)
    assert set(during) & {1, 2, 3}


class SwitchableEnv(IdentityEnv):
    """Switches its mode; evaluation terminates episodes at a lower threshold than training."""

    def __init__(self, num_envs: int = 16, has_state: bool = True) -> None:
        super().__init__(num_envs)
        self.capabilities = replace(self.capabilities, can_switch_mode=True, has_state=has_state)
        self.modes: list[str] = []
        self.seeds: list[int | None] = []

    def set_mode(self, mode: str) -> None:
        self.modes.append(mode)
        self.terminates_above = 0.5 if mode == "eval" else 2.0

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self.seeds.append(seed)

    def state_dict(self, **kwargs: object) -> dict[str, torch.Tensor]:
        return super().state_dict() if self.capabilities.has_state else {}

    def load_state_dict(self, state: dict[str, torch.Tensor], **kwargs: object) -> None:
        if self.capabilities.has_state:
            super().load_state_dict(state)


def switching_trainer(folder: Path, env: IdentityEnv, **settings: Any) -> TorchRLTrainer:
    torch.manual_seed(0)
    agent = build_for(env, SAC, hidden_sizes=[16], batch_size=32)
    defaults = {
        "total_frames": 640,
        "random_frames": 160,
        "evaluation_interval": 208,  # in the middle of episodes
        "evaluation_episodes": 24,
    }
    return trainer_of(env, agent, folder, **{**defaults, **settings})


@pytest.mark.slow
def test_evaluation_in_the_training_environment_does_not_change_training(tmp_path: Path) -> None:
    build = Builder()
    env = SwitchableEnv()
    evaluated = switching_trainer(tmp_path / "a", env, evaluation_env=Evaluator(build))
    evaluated.train()
    assert not build.built
    assert env.modes == ["eval", "train"] * 4
    assert evaluated.evaluations[evaluated.frames].mean_length < env.max_episode_steps
    plain = switching_trainer(tmp_path / "b", IdentityEnv())
    plain.train()
    for name, value in plain.agent.state_dict().items():
        assert torch.equal(value, evaluated.agent.state_dict()[name]), name


class CountingEnv(SwitchableEnv):
    """Counts its steps in place, in the tensor that its state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.total.add_(1)
        return super()._step(tensordict)

    def state_dict(self, **kwargs: object) -> dict[str, torch.Tensor]:
        return {**super().state_dict(), "total": self.total}

    def load_state_dict(self, state: dict[str, torch.Tensor], **kwargs: object) -> None:
        super().load_state_dict(state)
        self.total.copy_(state["total"])


def test_state_that_the_environment_changes_in_place_is_restored(tmp_path: Path) -> None:
    env = CountingEnv()
    trainer = switching_trainer(tmp_path, env)
    for _ in range(3):
        trainer.collect()
    trainer.evaluate(8)
    assert env.total == 3
    assert env.modes == ["eval", "train"]


def test_stop_request_ends_an_evaluation_during_training(tmp_path: Path) -> None:
    env = SwitchableEnv()
    trainer = switching_trainer(tmp_path, env, evaluation_episodes=10**9)

    before_each(env, "set_mode", lambda: setattr(trainer, "stop_requested", True))
    trainer.train()
    assert trainer.frames == 208
    assert not trainer.evaluations
    assert find_checkpoint(trainer.folder).stem == f"frames_{208:012d}"
    assert trainer.agent.policy.training


def test_environment_without_state_begins_new_episodes_of_the_training_stream(
    tmp_path: Path,
) -> None:
    env = SwitchableEnv(has_state=False)
    trainer = switching_trainer(tmp_path, env, total_frames=480)
    trainer.train()
    evaluated, frames = stream_seed(0, "selection"), (208, 416, 480)
    assert env.seeds == [
        seed for done in frames for seed in (evaluated, stream_seed(0, "training", done))
    ]
    assert trainer.updates > 0


@pytest.mark.slow
def test_progress_of_every_evaluation_is_displayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setattr("trainers.training.progress._LINE_SECONDS", 0.0)
    arguments = [
        *("agent=sac", "env._target_=tests.helpers.environments.IdentityEnv", "device=cpu"),
        *("trainer.total_frames=160", "agent.utd_ratio=0.125", "agent.hidden_sizes=[16]"),
        *("trainer.random_frames=0", "trainer.evaluation_episodes=600", "evaluation.episodes=700"),
        "evaluation.num_envs=50",
    ]
    ended = program(*arguments)
    assert ended.code == 0
    assert "evaluating 300/600 episodes" in ended.err
    assert "  episodes 350/700 " in ended.err
    assert "mode=demo" not in ended.out, "this environment cannot render"
    (summary,) = tmp_path.glob("runs/**/summary.json")
    assert json.loads(summary.read_text())["episodes"] == 700
