"""`resume=auto`: one command begins a run, goes on with it, and says when it has ended."""

import json
import logging
import signal
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from omegaconf import OmegaConf
from tensordict import TensorDictBase

from tests.helpers.files import names
from tests.helpers.program import Call
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line import sizes
from trainers.modes import train
from trainers.run import run, settings_of
from trainers.runs.folders import run_folder
from trainers.runs.policy_files import load_checkpoint
from trainers.training.trainer import TorchRLTrainer

COMMAND = (
    *("agent=dqn", "env=gym", "env.name=CartPole-v1", "device=cpu", "resume=auto"),
    *("trainer.total_frames=96", "trainer.random_frames=32", "trainer.evaluation_interval=32"),
    *("trainer.evaluation_episodes=2", "trainer.checkpoint_interval=32", "evaluation.episodes=2"),
    "trainer.loggers=[csv]",
)


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def runs() -> list[Path]:
    return sorted(Path("runs/gym/CartPole-v1/dqn").glob("*"))


def interrupted(*arguments: str, frames: int = 48) -> Path:
    """Begin a run, or go on with it, until a signal stops it; return its folder."""
    collect = TorchRLTrainer.collect

    def stop(trainer: TorchRLTrainer) -> TensorDictBase:
        if trainer.frames + trainer.frames_per_step >= frames:
            signal.raise_signal(signal.SIGTERM)
        return collect(trainer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TorchRLTrainer, "collect", stop)
        with pytest.raises(KeyboardInterrupt, match=f"Stopped at {frames} frames; ") as stopped:
            run(*arguments)
    return Path(str(stopped.value).rpartition("checkpoint=")[2].split()[0])


def test_one_command_begins_a_run_goes_on_with_it_and_says_when_it_has_ended(
    caplog: pytest.LogCaptureFixture, program: Call
) -> None:
    folder = interrupted(*COMMAND)
    assert interrupted(*COMMAND, frames=64) == folder
    before = load_checkpoint(find_checkpoint(folder))["seconds"]
    outcome = run(*COMMAND, "threads=2")  # a setting of the machine
    assert outcome.folder == folder
    assert json.loads((folder / "summary.json").read_text())["seconds"] >= before + outcome.seconds
    assert list(outcome.evaluations) == [32, 64, 96]
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("[!.]*")}
    again = run(*COMMAND)
    assert replace(again, report="", seconds=0.0) == replace(outcome, report="", seconds=0.0)
    said = program(*COMMAND).report()
    assert said.startswith(f"\nTrained already, for 96 frames, into {folder}\n  result  ")
    assert f"python -m trainers.run checkpoint={folder} trainer.total_frames=192 device=c" in said
    caplog.set_level(logging.INFO)
    settings_of(*COMMAND, "device=auto")
    assert caplog.text.count("device: ") == 1
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("[!.]*")} == files
    assert runs() == [folder]


@pytest.mark.slow
def test_other_settings_are_another_run() -> None:
    first = interrupted(*COMMAND)
    assert run(*COMMAND, "seed=1").folder != first
    assert run(*COMMAND, "agent.gamma=0.5").folder not in (first, None)
    assert len(runs()) == 3
    assert run(*COMMAND).folder == first


def test_a_closing_evaluation_that_was_interrupted_is_made_up_for() -> None:
    interrupted = mock.patch.object(train, "evaluation_of", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt, match="To evaluate:"):
        run(*COMMAND)
    (folder,) = runs()
    outcome = run(*COMMAND)
    assert (outcome.folder, list(outcome.evaluations)) == (folder, [32, 64, 96])
    assert "Trained for 96 frames" in outcome.report
    assert "Trained already" in run(*COMMAND).report


@pytest.mark.slow
def test_a_run_that_trains_longer_has_not_ended() -> None:
    folder = run(*COMMAND).folder
    longer = "trainer.total_frames=160"
    assert interrupted(f"checkpoint={folder}", "device=cpu", longer, frames=112) == folder
    outcome = run(*COMMAND, longer)
    assert (outcome.folder, max(outcome.evaluations)) == (folder, 160)
    assert run(*COMMAND).folder != folder


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_in_use_is_left_alone(has_checkpoint: bool) -> None:
    folder = interrupted(*COMMAND)
    (newest,) = folder.glob("checkpoints/frames_*48.safetensors")
    with run_folder(folder.parent, newest):
        if not has_checkpoint:
            for path in folder.glob("checkpoints/*"):
                path.unlink()
        with pytest.raises(ConfigurationError) as error:
            run(*COMMAND)
    reason = "in use by another run; wait until it has ended"
    assert str(error.value) == f"resume=auto: {folder}: {reason}"
    assert (run(*COMMAND).folder == folder) is has_checkpoint


def test_the_checkpoint_before_a_damaged_one_is_used(caplog: pytest.LogCaptureFixture) -> None:
    folder = interrupted(*COMMAND, frames=72)
    newest, before = (folder / "checkpoints" / f"frames_{n:012d}.safetensors" for n in (72, 64))
    newest.write_bytes(newest.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        outcome = run(*COMMAND)
    damaged = newest.with_suffix(".damaged")
    assert caplog.messages == [f"{damaged} cannot be read; going on from {before.name}"]
    assert (outcome.folder, max(outcome.evaluations)) == (folder, 96)
    assert "Trained already" in run(*COMMAND).report
    for path in folder.glob("checkpoints/frames_*.safetensors"):
        path.write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="frames_000000000096"):
        run(*COMMAND)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (
            "checkpoint=runs/mine",
            "resume=auto finds the run by its settings; leave it out, or leave out "
            "checkpoint=runs/mine",
        ),
        ("mode=eval", "resume=auto: only mode=train resumes a run; mode=eval takes checkpoint=..."),
        ("resume=yes", "resume=yes: input should be 'auto'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(argument: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_of(*COMMAND, argument)
    assert str(error.value) == reason


def test_a_sweep_goes_on_with_each_of_its_runs(program: Call) -> None:
    second = interrupted(*COMMAND, "seed=2")
    assert program(*COMMAND, "-m", "seed=1,2").code == 0
    first, *_ = [each for each in runs() if each != second]
    assert sorted(runs()) == sorted([first, second])
    said = program(*COMMAND, "-m", "seed=1,2").report()
    assert said.count("Trained already") == 2
    assert [line.split()[-1] for line in said.splitlines()[-2:]] == [str(first), str(second)]


def test_automatic_sizes_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = ("env.num_envs=auto", "agent.batch_size=auto", "trainer.total_frames=4096")
    monkeypatch.setattr(sizes, "num_cores", lambda: 1)
    folder = interrupted(*COMMAND, *automatic, frames=64)
    config = OmegaConf.load(folder / "config.yaml")
    monkeypatch.setattr(sizes, "num_cores", lambda: 2)
    settings = settings_of(*COMMAND, *automatic)
    assert settings.checkpoint == folder / "checkpoints" / "frames_000000000064.safetensors"
    assert settings.env.settings["num_envs"] == config.env.num_envs
    assert settings.agent.settings["batch_size"] == config.agent.batch_size


def test_settings_for_the_machine_are_not_those_of_the_run() -> None:
    folder = interrupted(*COMMAND)
    assert settings_of(*COMMAND, "device_memory_limit=8GiB").in_place
    assert "resume" not in OmegaConf.load(folder / "config.yaml")
    assert names(folder) == [".lock", "checkpoints", "config.yaml", "metrics.csv", "summary.json"]
