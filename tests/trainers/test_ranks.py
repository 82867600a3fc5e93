"""Runs of several processes, started by the program itself, by a scheduler and by torchrun.

Most ranks are forked, so that they start soon; those of two tests start anew, as for users.
"""

import gc
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig

from tests.helpers.forks import CAN_FORK, fork_server, forked
from tests.helpers.gloo import held_port
from tests.helpers.program import Call, changed
from tests.helpers.programs import Start
from tests.helpers.training import assert_same, forget_chance
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError, ProcessLostError, WorkerError
from torchrl_gpu.processes import Processes
from torchrl_gpu.signals import STOP_SIGNALS
from trainers import ranks
from trainers.command_line.settings import Settings
from trainers.finite_watch import NonfiniteError
from trainers.modes.train import train
from trainers.ranks import _as_rank, _failure, _signal_children
from trainers.run import main, run, settings_of
from trainers.signals import Interruption, handled

TASK = ("env=gym", "env.name=Pendulum-v1", "env.num_envs=4", "device=cpu", "precision=fp32")
RUN = (
    *("trainer.total_frames=480", "trainer.random_frames=80", "trainer.replay_capacity=400"),
    *("trainer.checkpoint_interval=240", "trainer.evaluation_interval=100000"),
    *("trainer.evaluation_episodes=4", "evaluation.episodes=4", "trainer.loggers=[csv]"),
    *("trainer.show_progress=false", "agent.batch_size=32"),
)
SAC = ("agent.utd_ratio=0.25", "agent.hidden_sizes=[16]", "agent.normalize_observations=true")
ENDLESS = ("trainer.total_frames=100_000_000", "trainer.show_progress=true", "compile=off")
SAVED = "checkpoints/frames_*[0-9].safetensors"
PATIENCE = 120

pytestmark = pytest.mark.skipif(num_cores() < 2, reason="one process for each core")


def settings(runs: Path, *more: str) -> list[str]:
    return changed(["agent=sac", *TASK, *RUN, *SAC, f"runs={runs}"], *more)


def contents(folder: Path, frames: int) -> dict[str, Any]:
    """Return the states of all processes after a number of frames, by path below the folder.

    Left out are the time, the settings, and the evaluation that ends a run: a run that goes on has
    one more. The replay is that of the whole, whatever its parts.
    """
    states = {}
    for path in (folder / "checkpoints").rglob(f"frames_{frames:012d}.safetensors"):
        state = load_state(path)
        forget_chance(state)
        for name in ("config", "evaluations"):
            state.pop(name, None)
        states[str(path.relative_to(folder))] = state
    return states


@pytest.mark.slow
def test_two_processes_resume_to_the_same_bytes(tmp_path: Path) -> None:
    whole = run(*settings(tmp_path / "whole", "devices=2"))
    half = run(*settings(tmp_path / "half", "devices=2", "trainer.total_frames=240"))
    rest = run(f"checkpoint={half.folder}", "trainer.total_frames=480", "devices=2", "device=cpu")
    assert rest.folder == half.folder
    expected, found = contents(whole.folder, 480), contents(rest.folder, 480)
    newest = "frames_000000000480.safetensors"
    assert expected.keys() == {f"checkpoints/{newest}", f"checkpoints/rank_1/{newest}"}
    assert expected[f"checkpoints/{newest}"]["processes"] == 2
    assert_same(expected, found)


def test_a_run_goes_on_with_another_number_of_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = run(*settings(tmp_path, "devices=2", "trainer.total_frames=240"))
    caplog.set_level(logging.INFO)
    one = run(f"checkpoint={two.folder}", "trainer.total_frames=320", "device=cpu")
    assert one.folder == two.folder
    assert "was saved by 2 process(es), and goes on with 1: its replay is divided" in caplog.text
    state = contents(one.folder, 320)["checkpoints/frames_000000000320.safetensors"]
    assert (state["frames"], state["updates"], state["processes"]) == (320, 60, 1)
    replay = CheckpointFolder(one.folder / "checkpoints").load_replay(one.newest or Path())
    assert replay is not None
    assert int(replay[-1]["next_step"].read()) == 80  # those of both processes before, and its own


def test_a_trained_run_goes_on_with_more_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run(*settings(tmp_path / "runs", "trainer.total_frames=240"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    two = run(f"checkpoint={one.folder}", "devices=2", "device=cpu")
    assert (two.folder, two.best) == (one.folder, one.best)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # no files of the launcher


def test_the_checkpoint_before_one_with_a_damaged_share_is_used(tmp_path: Path) -> None:
    intervals = ("trainer.total_frames=240", "trainer.checkpoint_interval=120")
    command = settings(tmp_path, "devices=2", "resume=auto", *intervals)
    folder = run(*command).folder
    share = folder / "checkpoints" / "rank_1" / "frames_000000000240.safetensors"
    share.write_bytes(share.read_bytes()[:-1])
    (folder / "summary.json").unlink()  # as if the run had not ended
    outcome = run(*command)
    assert outcome.folder == folder
    renamed = sorted(path.relative_to(folder) for path in folder.rglob("*.damaged"))
    assert renamed == [
        Path("checkpoints/frames_000000000240.damaged"),
        Path("checkpoints/rank_1/frames_000000000240.damaged"),
    ]
    assert load_state(share)["frames"] == 240


def place(rank: int, port: int) -> dict[str, str]:
    """Return the variables by which a scheduler tells one of two processes its place."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    variables = {name: str(number) for name, number in numbers.items()}
    return {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.fixture(autouse=True)
def _forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the launcher fork the ranks of a run of this process."""
    if CAN_FORK:
        fork_server()
        config = partial(LaunchConfig, start_method="forkserver")
        monkeypatch.setattr(ranks, "LaunchConfig", config)


def processes_by_rank(launcher: int) -> dict[int, psutil.Process]:
    """Return the processes of a run, which start in the order of their ranks."""
    processes = []
    for child in psutil.Process(launcher).children():
        with suppress(psutil.Error):  # it has just ended
            if "resource_tracker" not in str(child.cmdline()):
                processes.append(child)
    return dict(enumerate(sorted(processes, key=lambda process: process.pid)))


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def with_forked_ranks() -> int:
    """Be the program, of which the launcher forks the ranks."""
    config = partial(LaunchConfig, start_method="fork")
    with mock.patch.object(ranks, "LaunchConfig", config):
        return main()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_run_in_one_line(rank: int, tmp_path: Path, start: Start) -> None:
    command = settings(tmp_path / "runs", "devices=2", *ENDLESS)
    program = start(*command, program=with_forked_ranks)
    program.wait_for("no checkpoint", lambda: list(tmp_path.rglob(SAVED)))
    processes_by_rank(program.pid)[rank].kill()
    assert program.end(PATIENCE) == 1
    (folder,) = (tmp_path / "runs" / "gym" / "Pendulum-v1" / "sac").iterdir()
    last = program.output.splitlines()[-1]
    resume = f"python -m trainers.run checkpoint={folder} device=cpu devices=2"
    assert last == f"error: rank {rank} was ended by SIGKILL; to resume: {resume}"


def with_a_run(folder: Path) -> tuple[Settings, Path]:
    """Return the settings of a command, and the folder of a run that it has made."""
    command = settings_of(*settings(folder / "runs"))
    made = command.folder / "20260101_000000"
    (made / "checkpoints").mkdir(parents=True)
    (made / "config.yaml").write_text(command.of_run())
    (made / "checkpoints" / "frames_000000000240.safetensors").touch()
    return command, made


@pytest.mark.parametrize(
    ("code", "error", "kind", "text"),
    [
        (
            2,
            NonfiniteError("env: reward is NaN"),
            ConfigurationError,
            "refused: env: reward is NaN",
        ),
        (1, ProcessLostError("no answer; to resume: it"), WorkerError, "ended: no answer"),
    ],
)
def test_a_failure_names_the_reason_and_no_older_run(
    code: int, error: Exception, kind: type[Exception], text: str, tmp_path: Path
) -> None:
    command, older = with_a_run(tmp_path)
    report = tmp_path / "report.json"
    recorded = {"message": f"{type(error).__name__}: {error}", "extraInfo": {"timestamp": "0"}}
    report.write_text(json.dumps({"message": recorded}))
    ended = ChildFailedError("", {1: ProcessFailure(1, 1, code, str(report))})
    failure = _failure(ended, command, began=time.time() + 60)
    assert (type(failure), str(failure)) == (kind, f"rank 1 {text}; nothing has been saved")
    assert f"to resume: python -m trainers.run checkpoint={older}" in str(
        _failure(ended, command, began=0.0)
    )


@pytest.mark.parametrize(("code", "number"), [(130, signal.SIGINT), (75, signal.SIGTERM)])
def test_a_signal_before_others_have_ended_names_the_command_that_resumes(
    code: int, number: int, tmp_path: Path
) -> None:
    command, folder = with_a_run(tmp_path)
    ended = ChildFailedError("", {1: ProcessFailure(1, 1, code, "")})
    stop = _failure(ended, command, began=0.0)
    assert isinstance(stop, Interruption)
    assert stop.number == number
    resume = f"python -m trainers.run checkpoint={folder} device=cpu"
    assert str(stop) == f"\nEnded at once. To resume:\n  {resume}"
    assert str(_failure(ended, command, began=time.time() + 60)) == ""


@pytest.mark.slow
def test_torchrun_starts_again_from_the_newest_checkpoint(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"),
        *("-m", "trainers.run", *settings(tmp_path / "runs", *ENDLESS)),
    )
    root = str(Path(__file__).parents[2])
    program = psutil.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root})
    try:
        wait_for(lambda: list(tmp_path.rglob(SAVED)))
        first = processes_by_rank(program.pid)
        (folder,) = (tmp_path / "runs" / "gym" / "Pendulum-v1" / "sac").iterdir()
        checkpoints = CheckpointFolder(folder / "checkpoints")
        first[1].kill()
        wait_for(lambda: not first[0].is_running())
        before = checkpoints.paths()[-1]
        wait_for(lambda: checkpoints.paths()[-1] > before)
        again = processes_by_rank(program.pid)
        assert again.keys() == first.keys()
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=PATIENCE)
        assert psutil.wait_procs(again.values(), timeout=PATIENCE)[1] == []
    finally:
        for each in (*program.children(recursive=True), program) if program.is_running() else ():
            each.kill()
    assert list(folder.parent.iterdir()) == [folder]


def turn_the_signal_into_another_error(_: Any) -> None:
    """Be a library that calls Python in its own code."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("no instance of a class") from None


@pytest.mark.skipif(not CAN_FORK, reason="Python's tracker of resources releases no signals")
def test_signals_wait_until_a_process_has_imported_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process inherits the signals that its launcher holds when Python starts it."""

    def launch(*_: Any) -> Callable[[Settings], list[set[int]]]:
        def start(settings: Settings) -> list[set[int]]:
            resource_tracker.ensure_running()  # as Python does before the first process
            return [{*signal.pthread_sigmask(signal.SIG_BLOCK, [])}]

        return start

    tracker = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    monkeypatch.setattr(ranks, "elastic_launch", launch)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        held: Any = ranks.start(settings_of(*settings(tmp_path / "runs", "devices=2")))
    finally:
        tracker._stop()  # type: ignore[attr-defined]
    assert {*STOP_SIGNALS} <= held
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.skipif(not CAN_FORK, reason="needs the signals of Unix")
def test_a_signal_before_the_first_process_leaves_no_folder(tmp_path: Path) -> None:
    process = forked(lambda: _signal_children(str(tmp_path), (), signal.SIGINT, 0.0))
    process.start()
    process.join()
    assert process.exitcode == 130
    assert not tmp_path.exists()


def end_by(stop: Interruption) -> Callable[[Any], None]:
    def end(_: Any) -> None:
        raise stop

    return end


def test_no_signal_and_no_collection_of_garbage_delays_the_exit_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Interruption(signal.SIGTERM, "Stopped at 240 frames.", agreed=True)
    monkeypatch.setattr(ranks, "run_launched", end_by(stop))
    with handled(signal.default_int_handler):
        try:
            end = _as_rank(mock.Mock())
            assert isinstance(end, Interruption)
            assert (end.number, str(end)) == (signal.SIGTERM, "Stopped at 240 frames.")
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert gc.get_freeze_count() > 0
        finally:
            gc.unfreeze()


@pytest.mark.skipif(not CAN_FORK, reason="needs fork, by which a process starts soon")
@pytest.mark.parametrize(
    ("work", "code"),
    [
        (end_by(Interruption(signal.SIGINT)), 130),
        (end_by(Interruption(signal.SIGTERM)), 75),
        (turn_the_signal_into_another_error, 130),
    ],
)
def test_a_process_that_a_signal_ends_before_others_ends_them(
    work: Callable[[Any], None], code: int
) -> None:
    def begun() -> None:
        with mock.patch.object(ranks, "run_launched", work):
            _as_rank(mock.Mock())

    process = forked(begun)
    process.start()
    process.join()
    assert process.exitcode == code


@pytest.mark.slow
def test_a_signal_ends_the_evaluation_that_follows_a_training(tmp_path: Path, start: Start) -> None:
    """The processes of this run start anew, as those of users."""
    short = changed(ENDLESS, "trainer.total_frames=240", "evaluation.episodes=1000000")
    program = start(*settings(tmp_path / "runs", "devices=2", *short))
    program.wait_for("no summary", lambda: list(tmp_path.rglob("summary.json")))
    os.kill(program.pid, signal.SIGINT)
    assert program.end(PATIENCE) == 130
    # It may also arrive just before.
    assert re.search(r"\bTo (evaluate|resume)\b", program.output)


class WaitsForEvaluation(Processes):
    """Another process, which a signal reaches before the one that evaluates tells of its signal."""

    def agree(self, value: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        return signal.SIGTERM


class Other(Processes):
    rank = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def agree(self, value: Any) -> Any:
        return value or self.folder

    def apart(self, *patience: timedelta) -> Processes:
        return WaitsForEvaluation() if patience else self


def test_the_process_that_evaluates_tells_others_of_a_signal(tmp_path: Path) -> None:
    short = settings_of(*settings(tmp_path / "runs", "trainer.total_frames=240"))
    with handled(signal.default_int_handler), pytest.raises(KeyboardInterrupt) as end:
        train(short, Other(tmp_path))
    assert isinstance(end.value, Interruption)
    assert (end.value.number, end.value.agreed) == (signal.SIGTERM, True)


def test_processes_of_a_scheduler_save_at_its_signal(tmp_path: Path, start: Start) -> None:
    command = settings(tmp_path / "runs", *ENDLESS)
    with held_port() as port:
        first, second = (start(*command, variables=place(rank, port)) for rank in (0, 1))
        first.wait_for("no checkpoint", lambda: list(tmp_path.rglob(SAVED)))
    os.kill(second.pid, signal.SIGUSR1)  # others may receive it later, or not at all
    assert first.end(PATIENCE) == second.end(PATIENCE) == 75
    (folder,) = (tmp_path / "runs" / "gym" / "Pendulum-v1" / "sac").iterdir()
    assert f"saved. To resume:\n  python -m trainers.run checkpoint={folder}" in first.output
    assert "error" not in first.output
    assert second.output == ""
    newest = CheckpointFolder(folder / "checkpoints").paths()[-1].name
    assert (folder / "checkpoints" / "rank_1" / newest).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("devices=999", "device=cpu devices=999: this machine has"),
        ("devices=[0,1]", "device=cpu devices=[0, 1]: cpu takes a number of processes"),
        ("devices=[cuda:0,cpu]", "devices=['cuda:0', 'cpu']: input should be a valid integer"),
        ("devices=0", "devices=0: input should be greater than or equal to 1"),
        ("devices=2 mode=eval", "devices=2: only mode=train uses several devices"),
        ("devices=2 env.num_envs=5", "env.num_envs=5: 2 processes cannot share it equally"),
        ("devices=2 agent.batch_size=33", "agent.batch_size=33: 2 processes cannot share it"),
    ],
)
def test_processes_that_cannot_share_a_run_are_refused(
    arguments: str, message: str, tmp_path: Path, program: Call
) -> None:
    command = settings(tmp_path / "runs", *arguments.split())
    assert program(*command).refusal().startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("devices=2", "devices=2: torchrun sets the number of processes; leave it out"),
        ("mode=eval", "mode=eval: only mode=train runs under torchrun"),
        ("env.num_envs=5", "env.num_envs=5: 2 processes cannot share it equally"),
    ],
)
def test_torchrun_cannot_start_everything(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place(0, port=0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        settings_of(*settings(tmp_path, arguments))
