"""When a run saves: nothing is lost by whatever may fail, and the best policy is kept."""

import json
import logging
import threading
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from agents import PPO, SAC
from tests.helpers.agents import Case, assert_equal, build_for, every_agent, parameters
from tests.helpers.environments import IdentityEnv
from tests.helpers.training import before_each, make_trainer, metric_rows, trainer_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint, replay_path
from torchrl_gpu.checkpoints.state_file import Snapshot, load_state
from torchrl_gpu.errors import ConfigurationError
from trainers import Callback
from trainers.evaluation.evaluation import Evaluation
from trainers.evaluation.evaluator import Evaluator
from trainers.training.saving import begin_save
from trainers.training.trainer import TorchRLTrainer

STEP = 16


def make(folder: Path, env: IdentityEnv | None = None, **settings: Any) -> TorchRLTrainer:
    """Return a trainer of an update a step; evaluations, checkpoints and rows are apart."""
    torch.manual_seed(0)
    env = env or IdentityEnv(STEP)
    defaults = {
        "evaluation_env": IdentityEnv(STEP),
        "total_frames": 40 * STEP,
        "random_frames": 4 * STEP,
        "log_interval": 6 * STEP,
        "evaluation_interval": 10 * STEP,
        "evaluation_episodes": STEP,
        "checkpoint_interval": 16 * STEP,
    }
    agent = build_for(env, SAC, utd_ratio=1 / STEP)
    return trainer_of(env, agent, folder, **{**defaults, **settings})


def resumed(folder: Path, **settings: Any) -> TorchRLTrainer:
    """Return a trainer that has loaded the newest checkpoint of a run."""
    trainer = make(folder, **settings)
    trainer.load(find_checkpoint(trainer.folder))
    return trainer


def evaluated_frames(folder: Path) -> list[int]:
    """Return the frames of all evaluations in the log."""
    rows = metric_rows(folder)
    return [int(row["frames"]) for row in rows if row.get("evaluation/return")]


def scores(trainer: TorchRLTrainer, *values: float) -> None:
    """Let the evaluations of a trainer have these scores, one after the other."""
    left = iter(values)
    trainer.evaluate = lambda *_: Evaluation(STEP, next(left), 8.0)  # type: ignore[method-assign]


def test_the_best_of_all_evaluations_is_kept_with_its_policy(tmp_path: Path) -> None:
    trainer = make(tmp_path, checkpoints_kept=1)
    scores(trainer, -3.0, -1.0, -2.0, -4.0)
    policies: dict[int, dict[str, torch.Tensor]] = {}

    def note() -> None:
        policies[trainer.frames] = parameters(trainer.agent)

    before_each(trainer, "evaluate", note)
    trainer.train()
    best = trainer.checkpoints.best()
    assert best == trainer.checkpoints.path(20 * STEP)
    networks = load_state(best)["agent"]["networks"]
    assert_equal(networks, {name: policies[20 * STEP][name] for name in networks})
    assert [path.stem for path in trainer.checkpoints.paths()] == [
        f"frames_{steps * STEP:012d}" for steps in (20, 40)
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["mean_return"] == -1.0


@pytest.mark.parametrize(
    ("place", "steps"),
    [("log", 6), ("callback", 6), ("step", 9), ("evaluation", 10), ("update", 5), ("save", 10)],
)
def test_an_exception_loses_no_step(
    place: str, steps: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(tmp_path, callbacks=[callback := Callback()])
    error = ZeroDivisionError(place)
    if place == "evaluation":
        trainer.evaluation_env = Evaluator(mock.Mock(side_effect=error))
    else:
        owner, method = {
            "log": (trainer.metric_logger, "log"),
            "callback": (callback, "on_log"),
            "step": (trainer.env, "_step"),
            "update": (trainer.execution, "update"),
            "save": (callback, "on_save"),
        }[place]
        calls = [*9 * [None], error] if place == "step" else error
        before_each(owner, method, mock.Mock(side_effect=calls))
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        trainer.train()
    saved = trainer.checkpoints.path(steps * STEP)
    assert trainer.checkpoints.latest() == saved
    assert replay_path(saved).is_file()
    if place != "evaluation":  # it is saved before it begins
        assert f"an error ends the run at {steps * STEP} frames; saved: {saved}" in caplog.text
    again = resumed(tmp_path)
    again.train()
    assert again.updates == 40 - 4 - (place == "update")
    assert list(again.evaluations) == [160, 320, 480, 640]


def test_a_save_for_which_no_thread_is_left_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(tmp_path)
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "save":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        trainer.train()
    said = "at 160 frames; saving failed: can't start new thread; newest checkpoint: none\n"
    assert said in caplog.text


def test_an_exception_after_a_request_to_stop_ends_the_run_as_requested(tmp_path: Path) -> None:
    """A signal to the group of processes also ends the workers of an environment."""
    trainer = make(tmp_path)

    def stop_and_break() -> None:
        if trainer.frames == 7 * STEP:
            trainer.stop_requested = True
            raise EOFError

    before_each(trainer, "collect", stop_and_break)
    trainer.train()
    assert trainer.checkpoints.latest() == trainer.checkpoints.path(7 * STEP)


def test_an_interrupted_evaluation_is_made_when_the_run_resumes(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    for interrupted in (10 * STEP, 40 * STEP):
        folder = tmp_path / str(interrupted)
        trainer = make(folder)

        def stop(trainer: TorchRLTrainer = trainer, at: int = interrupted) -> None:
            trainer.stop_requested = trainer.frames == at

        before_each(trainer, "evaluate", stop)
        trainer.train()
        assert trainer.frames == interrupted
        assert interrupted not in trainer.evaluations
        again = resumed(folder)
        again.train()
        assert again.evaluations == whole.evaluations
        assert evaluated_frames(folder) == [160, 320, 480, 640]


def test_a_run_that_goes_on_from_an_earlier_checkpoint_logs_its_rows_anew(tmp_path: Path) -> None:
    whole = make(tmp_path)
    whole.train()
    again = make(tmp_path)
    again.load(whole.checkpoints.path(32 * STEP))
    again.train()
    assert evaluated_frames(tmp_path) == [10 * STEP, 20 * STEP, 30 * STEP, 40 * STEP]


def test_a_finished_run_is_neither_evaluated_nor_saved_again(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.train()
    latest = find_checkpoint(trainer.folder)
    written = latest.stat().st_mtime_ns
    again = resumed(tmp_path)
    again.train()
    assert evaluated_frames(tmp_path) == [160, 320, 480, 640]
    assert latest.stat().st_mtime_ns == written


def test_an_evaluation_at_a_checkpoint_does_not_write_the_replay_twice(tmp_path: Path) -> None:
    trainer = make(tmp_path, checkpoint_interval=10 * STEP)
    stored: list[int] = []
    before_each(trainer.experience, "part", lambda: stored.append(trainer.frames))
    trainer.train()
    assert stored == [160, 320, 480, 640]
    latest = find_checkpoint(trainer.folder)
    assert replay_path(latest).is_file()
    assert load_state(latest)["evaluations"]["frames"].tolist() == stored


def test_a_run_saves_and_resumes_any_number_of_evaluations(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.frames = 100_000
    found = Evaluation(7, -1 / 3, 5.5), Evaluation(7, 0.1, 8.0, 0.6, 0.4, 0.7)
    trainer.evaluations = {frames: found[frames % 2] for frames in range(30_000)}
    trainer.save()
    assert resumed(tmp_path).evaluations == trainer.evaluations


class Recorder(Callback):
    """Records all calls, and stops the training at some frames."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stops_at = stops_at

    def on_log(self, trainer: TorchRLTrainer, metrics: Mapping[str, float]) -> None:
        assert "seconds" in metrics
        self.calls.append(("log", trainer.frames))

    def on_evaluation(self, trainer: TorchRLTrainer, evaluation: Evaluation) -> None:
        assert trainer.evaluations[trainer.frames] == evaluation
        self.calls.append(("evaluation", trainer.frames))
        if trainer.frames == self.stops_at:
            trainer.stop_requested = True

    def on_save(self, trainer: TorchRLTrainer, path: Path) -> None:
        assert path == trainer.checkpoints.latest()
        self.calls.append(("save", trainer.frames))


def test_callbacks_follow_rows_evaluations_and_checkpoints(tmp_path: Path) -> None:
    first, second = Recorder(stops_at=20 * STEP), Recorder()
    callbacks = [first, Callback(), second]
    trainer = make(tmp_path, callbacks=callbacks, save_in_background=False)
    trainer.train()
    assert first.calls == second.calls
    assert [(name, frames // STEP) for name, frames in first.calls] == [
        ("log", 6),
        ("save", 10),
        ("save", 10),
        ("evaluation", 10),
        ("log", 12),
        ("save", 16),
        ("log", 18),
        ("save", 20),
        ("save", 20),
        ("evaluation", 20),
    ]


def test_a_run_ends_at_the_evaluation_that_reaches_the_score(tmp_path: Path) -> None:
    trainer = make(tmp_path, stop_at_score=-1.0)
    scores(trainer, -3.0, -1.0, -0.5)
    trainer.train()
    assert not trainer.stop_requested, "the run is complete"
    assert trainer.frames == 20 * STEP
    latest = trainer.checkpoints.latest()
    assert latest == trainer.checkpoints.best() == trainer.checkpoints.path(20 * STEP)
    again = resumed(tmp_path, stop_at_score=-1.0)
    again.train()
    assert again.frames == 20 * STEP
    further = resumed(tmp_path, stop_at_score=0.5)  # of successes: these evaluations have them
    further.train()
    assert further.frames == 40 * STEP


def write_as_late_as_possible(trainer: TorchRLTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk write nothing before the training waits for it."""
    waited_for, write = threading.Event(), Snapshot.write

    def stall_and_write(snapshot: Snapshot, path: Path) -> None:
        assert waited_for.wait(60)
        write(snapshot, path)

    before_each(trainer.saver, "begin", waited_for.clear)
    before_each(trainer.saver, "wait", waited_for.set)
    monkeypatch.setattr(Snapshot, "write", stall_and_write)


class Reader(Callback):
    """Reads each checkpoint and its replay at once: all that a run determines, tensors as bytes."""

    def __init__(self) -> None:
        self.files: list[list[Any]] = []

    def on_save(self, trainer: TorchRLTrainer, path: Path) -> None:
        for state in load_state(path), load_state(replay_path(path)):
            for varying in ("seconds", "config"):
                state.pop(varying, None)
            as_bytes = tree_map_only(Tensor, lambda tensor: tensor.numpy().tobytes(), state)
            self.files.append(tree_leaves(as_bytes))


@pytest.mark.slow
@every_agent
def test_a_checkpoint_holds_the_moment_of_the_save(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the training changes before the checkpoint is on disk."""
    readers = {"moment": Reader(), "late": Reader()}
    for name, reader in readers.items():
        trainer = make_trainer(
            case,
            tmp_path / name,
            options={"rollout_length": 6},
            total_frames=1200,
            random_frames=64,
            # The first part is a full replay: one more step may pass before the disk has it.
            replay_capacity=800,
            checkpoint_interval=1024,
            evaluation_interval=10**6,
            save_in_background=name == "late",
            callbacks=[reader],
        )
        if name == "late":
            write_as_late_as_possible(trainer, monkeypatch)
        trainer.train()
    files = readers["moment"].files
    assert len(files) == 6
    assert all(one != another for one, another in combinations(files[::2], 2))
    assert files == readers["late"].files


def test_a_rollout_is_saved_before_new_episodes_begin_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = IdentityEnv(STEP)
    agent = build_for(env, PPO, rollout_length=8)
    trainer = trainer_of(env, agent, tmp_path)
    write_as_late_as_possible(trainer, monkeypatch)

    def step() -> Tensor:
        trainer.saver.before_step()
        transition = trainer.collect()
        trainer.experience.store(transition)
        return transition["observation"].clone()

    stored = torch.stack([step() for _ in range(3)])
    begin_save(trainer)
    trainer.begin_new_episodes()
    step()
    trainer.saver.wait()
    saved = load_state(replay_path(trainer.checkpoints.path(3 * STEP)))["state"]
    assert torch.equal(saved["observation"], stored)


def test_a_failed_write_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(tmp_path, evaluation_env=None, checkpoint_interval=None)  # every 10 steps
    write = Snapshot.write

    def fill_the_disk(snapshot: Snapshot, path: Path) -> None:
        if trainer.frames >= 20 * STEP:
            raise ConfigurationError("cannot write: the disk is full")
        write(snapshot, path)

    monkeypatch.setattr(Snapshot, "write", fill_the_disk)
    with pytest.raises(ConfigurationError, match="the disk is full"):
        trainer.train()
    assert trainer.frames < 40 * STEP
    said = f"at {trainer.frames} frames; saving failed: cannot write: the disk is full; newest "
    assert f"{said}checkpoint: {trainer.checkpoints.path(10 * STEP).name}\n" in caplog.text
    monkeypatch.undo()
    assert trainer.checkpoints.latest() == trainer.checkpoints.path(10 * STEP)
    again = resumed(tmp_path)
    again.train()
    assert again.updates == 40 - 4
