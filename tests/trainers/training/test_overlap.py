"""Trainings that learn while the environment simulates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from agents import DQN, PPO, SAC
from agents.base import Agent
from benchmarks.fixture import stop_after
from tests.helpers.agents import assert_equal, build_for, parameters
from tests.helpers.environments import IdentityEnv, OverlapEnv
from tests.helpers.training import assert_resumes, before_each, trainer_of
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError
from trainers.components.pairing import pair
from trainers.training.trainer import TorchRLTrainer

ENVS, RANDOM, FRAMES = 16, 160, 960
INTERVALS = ("log_interval", "evaluation_interval", "checkpoint_interval")


def make(
    folder: Path,
    agent_class: type[Agent] = SAC,
    env: Environment | None = None,
    seed: int = 0,
    **settings: Any,
) -> TorchRLTrainer:
    torch.manual_seed(seed)
    env = pair(env or OverlapEnv(ENVS), agent_class)
    defaults: dict[str, Any] = {
        "evaluation_env": pair(IdentityEnv(ENVS), agent_class),
        "total_frames": FRAMES,
        "random_frames": RANDOM,
        "evaluation_episodes": 16,
        **dict.fromkeys(INTERVALS, FRAMES // 2),
    }
    return trainer_of(env, build_for(env, agent_class), folder, **{**defaults, **settings})


def test_updates_run_during_steps_and_are_as_many_as_without_overlap(tmp_path: Path) -> None:
    env = OverlapEnv(ENVS)
    trainer = make(tmp_path, env=env)
    updating: list[int] = []
    pausing: list[tuple[int, int]] = []
    before_each(trainer.execution, "update", lambda: updating.append(env.in_flight))
    rows, saver = trainer.metric_rows, trainer.saver
    for owner, name in ((rows, "log"), (trainer, "_evaluate"), (saver, "begin")):
        before_each(owner, name, lambda: pausing.append((env.in_flight, trainer.updates)))
    trainer.train()
    assert trainer.overlap
    assert trainer.updates == len(updating) == (FRAMES - RANDOM) // 8
    # Two updates before each of the two pauses have no step to wait for.
    assert updating.count(0) == 4
    halfway, end = (FRAMES // 2 - RANDOM) // 8, (FRAMES - RANDOM) // 8
    assert pausing == 4 * [(0, halfway)] + 4 * [(0, end)]
    experience: Any = trainer.experience
    assert len(experience.replay) == FRAMES


def test_an_evaluation_on_request_follows_the_updates_of_its_step(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    evaluated: list[tuple[int, int]] = []

    def request() -> None:
        trainer.evaluation_requested = trainer.frames == 320

    before_each(trainer, "collect", request)
    before_each(trainer, "_evaluate", lambda: evaluated.append((trainer.frames, trainer.updates)))
    trainer.train()
    assert evaluated[0] == (320 + ENVS, (320 + ENVS - RANDOM) // 8)


def test_a_run_that_ends_between_all_intervals_learns_from_its_last_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict.fromkeys(INTERVALS, FRAMES - 1)
    trainer = make(tmp_path, **settings, total_frames=FRAMES - 2 * ENVS)
    trainer.train()
    assert trainer.overlap
    assert trainer.updates == (FRAMES - 2 * ENVS - RANDOM) // 8


def test_a_run_without_overlap_is_that_of_an_environment_that_cannot(tmp_path: Path) -> None:
    class TakesTurns(OverlapEnv):
        def begin_step(self, tensordict: TensorDictBase) -> None:
            pytest.fail("a step has begun early")

    learned = []
    for env, overlap in ((TakesTurns(ENVS), False), (IdentityEnv(ENVS), None)):
        trainer = make(tmp_path / type(env).__name__, env=env, overlap=overlap)
        assert not trainer.overlap
        trainer.train()
        learned.append(parameters(trainer.agent))
    assert_equal(*learned)


@pytest.mark.parametrize(
    ("agent_class", "stopped_at"), [(SAC, 480), (SAC, 496), (DQN, 144), (DQN, 496)]
)
def test_a_stopped_run_resumes_exactly(
    tmp_path: Path, agent_class: type[Agent], stopped_at: int
) -> None:
    def build(name: str, **settings: Any) -> TorchRLTrainer:
        return make(tmp_path / name, agent_class, OverlapEnv(ENVS), **settings)

    whole = build("whole")
    whole.train()
    first = build("parts")
    stop_after(first, stopped_at)
    first.train()
    assert first.frames == stopped_at
    assert_resumes(build("parts", seed=99), whole)


def test_training_goes_on_after_an_interrupt_during_a_step(tmp_path: Path) -> None:
    env = OverlapEnv(ENVS)
    trainer = make(tmp_path, env=env)

    def interrupt() -> None:
        if trainer.updates == 21 and not stopped:
            stopped.append(env.in_flight)
            raise KeyboardInterrupt

    stopped: list[int] = []
    before_each(trainer.agent, "after_update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert stopped == [1]
    trainer.train()
    assert env.in_flight == 0
    experience: Any = trainer.experience
    assert trainer.frames == len(experience.replay) == FRAMES
    # The update that was interrupted is not repeated.
    assert trainer.updates == (FRAMES - RANDOM) // 8 - 1


def test_on_policy_agents_act_with_their_newest_policy(tmp_path: Path) -> None:
    assert not make(tmp_path, PPO).overlap
    with pytest.raises(ConfigurationError, match="overlap=true: PPO learns on-policy"):
        make(tmp_path, PPO, overlap=True)


def test_an_environment_that_cannot_overlap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="overlap=true: IdentityEnv"):
        make(tmp_path, env=IdentityEnv(ENVS), overlap=True)
