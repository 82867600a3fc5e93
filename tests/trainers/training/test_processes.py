"""Trainings by several processes, most of them played by threads."""

import threading
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from agents import DQN, SAC
from benchmarks.fixture import stop_after
from envs.gym import GymnasiumEnv
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import CASES, Case, assert_equal, build_for, parameters
from tests.helpers.environments import MatchEnv
from tests.helpers.gloo import on_gloo_ranks
from tests.helpers.ranks import on_ranks
from tests.helpers.training import (
    assert_same_checkpoints,
    before_each,
    train_briefly,
    trainer_of,
)
from tests.trainers.evaluation.test_evaluator import SwitchableEnv
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, find_checkpoint, replay_path
from torchrl_gpu.errors import ConfigurationError, ProcessLostError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers import Callback
from trainers.components.pairing import pair
from trainers.evaluation.evaluation import Evaluation
from trainers.metrics import EpisodeStatistics, read
from trainers.training.saving import CheckpointSaver
from trainers.training.trainer import TorchRLTrainer

ENVS, RANDOM, FRAMES = 8, 64, 512
STAGE = "curriculum/stage"


def make(folder: Path, processes: Processes, **settings: Any) -> TorchRLTrainer:
    env = MatchEnv(2 * ENVS // processes.count)
    agent = build_for(env, DQN)
    agent.join(processes)
    defaults = {
        "total_frames": FRAMES,
        "random_frames": RANDOM,
        "evaluation_episodes": 8,
        "log_interval": 128,
    }
    return trainer_of(env, agent, folder, **{**defaults, **settings})


def test_two_processes_count_all_frames_and_one_of_them_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(processes: Processes) -> tuple[TorchRLTrainer, dict[str, Tensor]]:
        trainer = make(tmp_path / str(processes.rank), processes, show_progress=True)
        trainer.train()
        return trainer, parameters(trainer.agent)

    (one, learned), (other, learned_too) = on_ranks(2, train)
    assert one.frames == other.frames == FRAMES
    assert one.collector.steps == other.collector.steps == FRAMES // (2 * ENVS)
    assert one.updates == other.updates == (FRAMES - RANDOM) // 8
    assert int(one.agent.policy.frames) == FRAMES
    assert_equal(learned, learned_too)
    assert (tmp_path / "0" / "metrics.csv").exists()
    assert [path.name for path in one.checkpoints.paths()] == ["frames_000000000512.safetensors"]
    assert not (tmp_path / "1" / "metrics.csv").exists()
    shares = tmp_path / "1" / "checkpoints" / "rank_1"
    assert [path.name for path in shares.glob("frames_*[0-9].safetensors")] == [
        "frames_000000000512.safetensors"
    ]
    assert capsys.readouterr().err.count("512/512") == 1


@pytest.mark.parametrize("frames", [176, FRAMES])
def test_a_request_to_one_process_stops_all(tmp_path: Path, frames: int) -> None:
    def train(processes: Processes) -> tuple[int, bool, int]:
        trainer = make(tmp_path / str(processes.rank), processes, evaluation_env=MatchEnv(ENVS))
        if processes.rank == 1:
            stop_after(trainer, frames)
        trainer.train()
        return trainer.frames, trainer.stop_requested, len(trainer.evaluations)

    # After the last step, there is nothing left to stop but the evaluation.
    assert on_ranks(2, train) == [(frames, frames < FRAMES, 0), (frames, True, 0)]


@pytest.mark.parametrize("asked", [0, 1])
def test_a_request_during_an_evaluation_stops_all(tmp_path: Path, asked: int) -> None:
    def train(processes: Processes) -> tuple[int, bool, int]:
        env, folder = MatchEnv(ENVS), tmp_path / str(processes.rank)
        trainer = make(folder, processes, evaluation_interval=160, evaluation_env=env)

        def stop() -> None:
            trainer.stop_requested = processes.rank == asked and trainer.frames == 320

        before_each(env, "_step", stop)
        trainer.train()
        return trainer.frames, trainer.stop_requested, len(trainer.evaluations)

    assert on_ranks(2, train) == [(320, True, 1)] * 2


def trained(folder: Path) -> Path:
    """Return the checkpoint of a training by two processes."""

    def train(processes: Processes) -> Path:
        trainer = make(folder, processes)
        trainer.train()
        return trainer.checkpoints.path(FRAMES)

    return on_ranks(2, train)[0]


def test_all_processes_fill_a_replay_that_one_of_them_has_lost(tmp_path: Path) -> None:
    checkpoint = trained(tmp_path)
    (replay,) = (tmp_path / "checkpoints" / "rank_1").glob("*_replay.safetensors")
    replay.unlink()

    def go_on(processes: Processes) -> tuple[int, bool, dict[str, Tensor]]:
        trainer = make(tmp_path, processes, total_frames=FRAMES + 160)
        trainer.load(checkpoint)
        updates = trainer.updates
        trainer.train()
        newest = find_checkpoint(trainer.checkpoints.folder)
        is_saved = trainer.checkpoints.load_replay(newest) is not None
        return trainer.updates - updates, is_saved, parameters(trainer.agent)

    (updates, is_saved, learned), other = on_ranks(2, go_on)
    assert (updates, is_saved) == other[:2] == ((160 - RANDOM) // 8, True)
    assert_equal(learned, other[2])


def test_all_processes_begin_new_episodes_where_one_of_them_has_lost_its_own(
    tmp_path: Path,
) -> None:
    checkpoint = trained(tmp_path)

    def go_on(processes: Processes) -> int:
        trainer = make(tmp_path, processes)
        fits = mock.Mock(return_value=processes.rank == 0)
        with (
            mock.patch.object(trainer, "begin_new_episodes") as begin,
            mock.patch.object(trainer.collector, "load_state_dict", fits),
        ):
            trainer.load(checkpoint)
        return begin.call_count

    assert on_ranks(2, go_on) == [1, 1]


def test_a_divided_replay_is_saved_with_the_evaluation_that_was_due(tmp_path: Path) -> None:
    checkpoint = trained(tmp_path)
    trainer = make(tmp_path, ONE_PROCESS, evaluation_env=MatchEnv(ENVS))
    trainer.load(checkpoint)
    trainer.train()
    assert list(trainer.evaluations) == [FRAMES]
    assert replay_path(checkpoint).exists()


def test_all_processes_take_note_of_a_checkpoint_in_the_same_step(tmp_path: Path) -> None:
    trained_on = Event()

    def train(processes: Processes) -> list[int]:
        noted: list[int] = []
        callbacks = [callback := Callback()]
        trainer = make(tmp_path, processes, callbacks=callbacks, checkpoint_interval=160)

        def tell() -> None:
            if trainer.frames >= 256:
                trained_on.set()

        def wait() -> None:
            assert processes.rank == 0 or trained_on.wait(60)

        before_each(callback, "on_save", lambda: noted.append(trainer.frames))
        before_each(trainer, "collect", tell)
        before_each(trainer.checkpoints, "_rotate", wait)
        trainer.train()
        return noted

    one, other = on_ranks(2, train)
    assert one == other
    assert one[0] > 256


def test_episodes_of_all_processes_count() -> None:
    def means(processes: Processes) -> dict[str, float]:
        statistics = EpisodeStatistics(1, "cpu", processes)
        reward = torch.tensor([[1.0 + 2.0 * processes.rank]])
        after = {"reward": reward, "done": torch.tensor([[True]])}
        statistics.update(TensorDict({"next": after}, [1]))
        return read(statistics.take())

    expected = {"episode/return": 2.0, "episode/length": 1.0, "episode/count": 2.0}
    assert on_ranks(2, means) == [expected, expected]


class Sharing(SwitchableEnv):
    """Asks the other processes in each step of the training, never in an evaluation."""

    shared = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        after = super()._step(tensordict)
        if self.modes[-1:] != ["eval"]:
            self.shared += int(self.processes.gather(after["done"]).sum())
        return after


@pytest.mark.parametrize("has_state", [True, False])
def test_an_environment_asks_other_processes_in_training_alone(
    tmp_path: Path, has_state: bool
) -> None:
    """The processes play different shares of an evaluation, in different numbers of steps."""

    def train(processes: Processes) -> tuple[dict[int, Evaluation], int]:
        env = Sharing(8, has_state)
        env.max_episode_steps = 8 + 3 * processes.rank
        agent = build_for(env, SAC)
        agent.join(processes)
        settings = {"total_frames": 320, "evaluation_interval": 160, "evaluation_episodes": 9}
        settings["random_frames"] = 64
        trainer = train_briefly(env, agent, tmp_path / str(processes.rank), **settings)
        return trainer.evaluations, env.shared

    one, other = on_ranks(2, train)
    assert one == other
    assert [evaluation.episodes for evaluation in one[0].values()] == [9, 9]
    assert one[1] > 0


def resumed(processes: Processes, folder: Path) -> list[str]:
    """Train every agent at one go, and stopped and resumed; return those that differ."""
    different = []
    for case in CASES:

        def trainer(name: str, case: Case = case) -> TorchRLTrainer:
            torch.manual_seed(processes.rank)
            pendulums = GymnasiumEnv(name="Pendulum-v1", num_envs=2, seed=processes.rank)
            env = pair(pendulums, case.agent_class)
            agent = build_for(
                env,
                case.agent_class,
                rollout_length=8,
                normalize_rewards=True,
                normalize_observations=True,
                batch_size=8,
                utd_ratio=0.25,
            )
            agent.join(processes)
            path = folder / f"{case.agent_class.__name__}_{case.actions}" / name
            lengths = {"total_frames": 240, "random_frames": 40, "replay_capacity": 150}
            return trainer_of(env, agent, path, **lengths)

        whole = trainer("whole")
        whole.train()
        first = trainer("halves")
        stop_after(first, 100 + 4 * processes.rank)  # the first request stops both
        first.train()
        saved = find_checkpoint(first.folder)
        rest = trainer("halves")
        rest.load(saved)
        rest.train()
        try:
            assert_same_checkpoints(whole, rest)
        except AssertionError as error:
            different.append(f"{case}: {error}")
    return different


@pytest.mark.slow
def test_every_agent_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    assert on_gloo_ranks(2, partial(resumed, folder=tmp_path), tmp_path) == [[], []]


def test_the_curriculum_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    def trainer(processes: Processes) -> TorchRLTrainer:
        schedule = [(0, 1, 0, 5.0), (64, 2, 0, 5.0)]
        seas: dict[str, Any] = {"num_robots": 2, "num_obstacles": 0, "max_episode_steps": 5}
        env = MarineNavEnv(
            num_envs=4 // processes.count, curriculum=True, schedule=schedule, **seas
        )
        agent = build_for(env, SAC, batch_size=8, utd_ratio=0.1)
        agent.join(processes)
        return trainer_of(env, agent, tmp_path, total_frames=80, random_frames=20)

    one = trainer(ONE_PROCESS)
    one.train()

    def frames_and_stage(processes: Processes) -> tuple[int, float]:
        resumed = trainer(processes)
        resumed.load(one.checkpoints.path(80))
        resumed.collect()
        return int(resumed.env.state_dict()["frames"]), float(resumed.env.metrics()[STAGE])

    assert on_ranks(2, frames_and_stage) == [(84, 1.0)] * 2


def test_the_checkpoint_of_a_run_appears_after_all_shares(tmp_path: Path) -> None:
    def save(processes: Processes) -> type[Exception]:
        folder = CheckpointFolder(tmp_path / "checkpoints", processes=processes)
        if processes.rank == 1:  # where this process wants to write lies a file
            folder.folder.parent.mkdir()
            folder.folder.touch()
        with pytest.raises((ConfigurationError, ProcessLostError)) as failure:
            folder.prepare(100, {"rank": processes.rank})()
        return failure.type

    assert on_ranks(2, save) == [ProcessLostError, ConfigurationError]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_all_processes_wait_where_one_of_them_has_no_steps_left(tmp_path: Path) -> None:
    written = threading.Event()
    threading.Timer(0.2, written.set).start()

    def write() -> Path:
        written.wait()
        return tmp_path

    def step_of_the_end(processes: Processes) -> int:
        noted: list[Path] = []
        saver = CheckpointSaver(True, noted.append, processes)
        saver.begin(write, (0, 0), steps=2 + 3 * processes.rank)
        step = 0
        while not noted:
            step += 1
            saver.before_step()
        return step

    assert on_ranks(2, step_of_the_end) == [3, 3]
