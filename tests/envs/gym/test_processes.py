"""Processes of Gymnasium's environments that die or hang."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from envs.gym import GymnasiumEnv
from envs.processes import MAX_LOSSES
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE
from tests.helpers.environments import trajectory
from tests.helpers.programs import PATIENCE, Start, session
from torchrl_gpu.environments.environment import EpisodesLostError
from torchrl_gpu.errors import WorkerError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")

AUTORESETS = ("disabled", "same_step", "next_step")
LOSSES: dict[int, str] = {
    signal.SIGKILL: "died with exit code -9",
    signal.SIGSTOP: "has not answered for 0.5 s",
}
every_loss_and_autoreset = pytest.mark.parametrize(
    ("number", "autoreset"),
    [*((signal.SIGKILL, each) for each in AUTORESETS), (signal.SIGSTOP, "disabled")],
)


@pytest.fixture
def make(make_gym: MakeGym) -> MakeGym:
    """Build environments of three counters by default, in a process each."""

    def make(name: str = "Counter-v0", **settings: Any) -> GymnasiumEnv:
        defaults = {"num_envs": 3, "vectorization": "async", "step_timeout": 0.5}
        return make_gym(f"{MODULE}:{name}", **{**defaults, **settings})

    return make


def lose(env: GymnasiumEnv, index: int, number: int = signal.SIGKILL) -> int:
    """Kill or stop the process of an environment, and return its id."""
    process = env._vector.processes[index]
    os.kill(process.pid, number)
    if number == signal.SIGKILL:
        process.join()
    return process.pid


@every_loss_and_autoreset
def test_a_lost_process_is_replaced_and_only_its_episode_is_truncated(
    number: int, autoreset: str, make: MakeGym, caplog: pytest.LogCaptureFixture
) -> None:
    env, calm = make(autoreset=autoreset), make(autoreset=autoreset, vectorization="sync")
    ours, theirs = env.reset(), calm.reset()
    action, others = torch.ones(3, dtype=torch.int64), [0, 2]
    for _ in range(2):
        ours = env.step_and_maybe_reset(ours.set("action", action))[1]
        theirs = calm.step_and_maybe_reset(theirs.set("action", action))[1]
    last, pid = ours["observation"].clone(), lose(env, 1, number)
    step, ours = env.step_and_maybe_reset(ours.set("action", action))
    expected, theirs = calm.step_and_maybe_reset(theirs.set("action", action))
    after = step["next"]
    assert (after["truncated"][1], after["terminated"][1]) == (True, False)
    assert after["reward"][1] == 0
    assert torch.equal(after["observation"][1], last[1])
    assert (after[others] == expected["next"][others]).all()
    new = env._vector.processes[1].pid
    line = f"process {pid} of environment 1 {LOSSES[number]}: its episode is truncated; process"
    assert f"{line} {new} replaces it" in caplog.text
    assert not psutil.pid_exists(pid)
    assert env.metrics() == {"workers/lost_episodes": 1}
    assert env.metrics() == {"workers/lost_episodes": 0}
    lengths, length = [], 0
    for _ in range(20):
        begins = not ours.get("active", torch.ones(3, 1, dtype=torch.bool))[1]
        before = ours["observation"][1, 1]
        step, ours = env.step_and_maybe_reset(ours.set("action", action))
        expected, theirs = calm.step_and_maybe_reset(theirs.set("action", action))
        assert (step["next"][others] == expected["next"][others]).all()
        if begins:
            assert step["next", "observation"][1, 1] == 0
            continue
        assert step["next", "observation"][1, 1] == before + 1
        length += 1
        if step["next", "done"][1]:
            lengths.append(length)
            length = 0
    assert len(lengths) >= 2
    assert all(3 <= each <= 5 for each in lengths)


@every_loss_and_autoreset
def test_a_process_lost_in_a_reset_costs_nothing(
    number: int, autoreset: str, make: MakeGym
) -> None:
    env, calm = make(autoreset=autoreset), make(autoreset=autoreset, vectorization="sync")
    lose(env, 0, number)
    actions = torch.ones(3, 3, dtype=torch.int64)
    assert (trajectory(env, actions) == trajectory(calm, actions)).all()
    assert env.metrics() == {"workers/lost_episodes": 0}


def test_a_process_lost_between_episodes_begins_the_next_one(make: MakeGym) -> None:
    env = make(autoreset="next_step", num_envs=1)
    root = env.reset()
    action = torch.ones(1, dtype=torch.int64)
    while root["active"].all():
        root = env.step_and_maybe_reset(root.set("action", action))[1]
    lose(env, 0)
    step, root = env.step_and_maybe_reset(root.set("action", action))
    assert not step["next", "done"].any()
    assert step["next", "observation"][0, 1] == 0
    step, _ = env.step_and_maybe_reset(root.set("action", action))
    assert step["next", "observation"][0, 1] == 1
    assert env.metrics() == {"workers/lost_episodes": 0}


def test_a_process_lost_in_the_reset_of_another_is_replaced_in_the_next_step(make: MakeGym) -> None:
    env = make()
    root = env.reset()
    stood = root["observation"][1]
    lose(env, 1, signal.SIGSTOP)
    mask = torch.tensor([[True], [False], [False]])
    root = env.reset(root.set("_reset", mask)).exclude("_reset")
    assert torch.equal(root["observation"][1], stood)
    step = env.step(root.set("action", torch.ones(3, dtype=torch.int64)))
    assert step["next", "truncated"].squeeze(1).tolist() == [False, True, False]


def test_a_process_lost_before_a_picture_is_replaced(make: MakeGym) -> None:
    env = make(mode="demo")
    root = env.reset()
    lose(env, 1, signal.SIGSTOP)
    assert env.render(1).shape == (4, 6, 3)
    step = env.step(root.set("action", torch.ones(3, dtype=torch.int64)))
    assert step["next", "truncated"].squeeze(1).tolist() == [False, True, False]


def test_a_process_lost_before_an_attribute_is_set_is_replaced(make: MakeGym) -> None:
    env = make()
    env.reset()
    lose(env, 1)
    for _ in range(2):  # the time of the first call is over
        env._vector.set_attr("end", [3, 4, 5])
    assert env._vector.get_attr("end") == (3, 4, 5)


def test_a_begun_step_of_a_lost_process_is_finished(make: MakeGym) -> None:
    env = make()
    root = env.reset().set("action", torch.ones(3, dtype=torch.int64))
    env.begin_step(root)
    lose(env, 2, signal.SIGSTOP)
    time.sleep(0.1)
    env.step_and_maybe_reset(root)  # it may have answered before
    env.begin_step(root)
    step, _ = env.step_and_maybe_reset(root)
    assert env.metrics() == {"workers/lost_episodes": 1}
    assert step["next", "reward"].shape == (3, 1)


def test_a_process_lost_before_a_save_leaves_no_episodes_to_go_on_with(make: MakeGym) -> None:
    """The new process is elsewhere than the observation; the next step truncates the episode."""
    env = make(autoreset="same_step")
    root = env.reset().set("action", torch.ones(3, dtype=torch.int64))
    lose(env, 1)
    with pytest.raises(EpisodesLostError, match="a process of the environment was lost"):
        env.state_dict()
    step, _ = env.step_and_maybe_reset(root)
    assert step["next", "truncated"].squeeze(1).tolist() == [False, True, False]
    assert env.state_dict()


def test_a_step_that_hangs_is_replaced(make: MakeGym, caplog: pytest.LogCaptureFixture) -> None:
    env = make("Hanging-v0")
    root = env.reset().set("action", torch.tensor([0, 2, 0]))
    started = time.monotonic()
    step = env.step(root)
    assert time.monotonic() - started < 60  # seconds that the environment hangs
    assert step["next", "truncated"].squeeze(1).tolist() == [False, True, False]
    assert "environment 1 has not answered for 0.5 s" in caplog.text


def test_processes_lost_again_and_again_end_the_run_in_one_line(make: MakeGym) -> None:
    env = make("Hanging-v0", step_timeout=0.2)
    root = env.reset().set("action", torch.tensor([0, 2, 0]))
    for _ in range(MAX_LOSSES):
        env.step_and_maybe_reset(root)
    with pytest.raises(WorkerError, match=r"^process \d+ of environment 1 .*finished no step$"):
        env.step(root)


def test_an_exception_of_the_environment_is_not_a_loss(make: MakeGym) -> None:
    env = make("Broken-v0")
    pids = [process.pid for process in env._vector.processes]
    with pytest.raises(WorkerError, match="KeyError in"):
        env.rollout(1)
    assert [process.pid for process in env._vector.processes] == pids


def test_a_wrong_answer_is_refused_in_one_line(make: MakeGym) -> None:
    env = make("WrongAnswer-v0")
    with pytest.raises(WorkerError, match=r"^the result of a step .*: .*pickle[^\n]*$"):
        env.rollout(1)


@pytest.mark.parametrize("number", LOSSES)
def test_close_does_not_wait_long_for_lost_processes(
    number: int, make: MakeGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.gym.processes.SECONDS_TO_END", 0.3)
    env = make()
    processes = list(env._vector.processes)
    env.reset()
    for index in (0, 2):
        lose(env, index, number)
    env.close()
    for process in processes:  # a busy machine may take longer than the wait above
        process.join(PATIENCE)
        assert process.exitcode is not None


def test_close_in_the_middle_of_a_step_waits_less(
    make: MakeGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.gym.processes.SECONDS_TO_END", 60.0)
    env = make("Hanging-v0")
    pids = [process.pid for process in env._vector.processes]
    env.begin_step(env.reset().set("action", torch.tensor([0, 2, 0])))
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 60
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_program_that_ends_leaves_no_process_and_no_file(
    end: str, start: Start, tmp_path: Path
) -> None:
    def script() -> int:
        env = GymnasiumEnv(name=f"{MODULE}:Camera-v0", num_envs=3, vectorization="async")
        env.rollout(2)
        pids = [process.pid for process in env._vector.processes]
        os.kill(pids[0], signal.SIGSTOP)
        sys.stdout.write(f"{pids}\n")
        while not (tmp_path / "ends").exists():
            time.sleep(0.01)
        return 0

    program = start(program=script)
    program.wait_for("no processes", lambda: program.output.endswith("\n"))
    pids = json.loads(program.output)
    files = [Path(entry.path) for entry in psutil.Process(pids[0]).memory_maps()]
    if end == "kill":
        program.process.kill()
    (tmp_path / "ends").touch()
    program.process.join(PATIENCE)
    assert not program.process.is_alive()
    psutil.wait_procs(session(program.pid), timeout=PATIENCE)
    assert not any(map(psutil.pid_exists, pids))
    shared = {Path("/dev/shm"), Path("/tmp")}
    assert not any(file.exists() for file in files if file.parent in shared)
