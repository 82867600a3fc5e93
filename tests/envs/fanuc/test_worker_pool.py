import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from envs.fanuc import FanucEnv
from envs.fanuc.robot import load_robot
from envs.fanuc.worker_pool import WorkerPool, default_num_workers, group_sizes
from envs.processes import MAX_LOSSES
from tests.helpers.forks import result_of
from tests.helpers.programs import PATIENCE, Start
from torchrl_gpu.devices.containers import core_limit
from torchrl_gpu.devices.host import share_cores, usable_cores
from torchrl_gpu.errors import ConfigurationError, WorkerError

MakeEnv = Callable[..., FanucEnv]


def _ends(pid: int, seconds: float = PATIENCE) -> bool:
    """Wait until a process has exited or is a zombie."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def _shared_files(pid: int) -> set[str]:
    """Return the files in folders for temporary files that a process has mapped."""
    folders = {"/dev/shm", tempfile.gettempdir()}
    maps = (entry.path for entry in psutil.Process(pid).memory_maps())
    return {path for path in maps if str(Path(path).parent) in folders}


@pytest.mark.parametrize("num_arms", [1, 3, 8, 20, 64, 65, 200])
def test_every_arm_is_assigned_once(num_arms: int) -> None:
    sizes = group_sizes(num_arms)
    assert sum(sizes) == num_arms
    assert 1 <= min(sizes) <= max(sizes) <= 8
    assert max(sizes) - min(sizes) <= 1
    assert 1 <= default_num_workers(num_arms) <= len(sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="pins no processes")
def test_workers_use_the_share_of_the_cores_of_their_process() -> None:
    def cores_of_workers() -> tuple[list[int], list[tuple[list[int], int]]]:
        share_cores(1, 2)
        pool = WorkerPool(load_robot(), 8, None, 10)
        used = []
        for give_way in (False, True):
            if give_way:
                pool.give_way()
            cores = {core for pid in pool.pids for core in psutil.Process(pid).cpu_affinity()}
            used.append((sorted(cores), len(pool.pids)))
        pool.close()
        return usable_cores(), used

    share, used = result_of(cores_of_workers)
    cores = usable_cores()
    assert share == (cores[len(cores) // 2 :] if len(cores) > 1 else cores)
    if len(cores) <= 16 and core_limit() is None:  # as many workers as cores
        assert used == [(share, min(8, len(share)))] * 2


@pytest.mark.parametrize(
    ("lose", "worker", "settings", "cause"),
    [
        (psutil.Process.kill, 1, {}, "died with exit code"),
        (psutil.Process.suspend, 0, {"step_timeout": 0.5}, "has not answered for 0.5 s"),
    ],
)
def test_a_lost_worker_is_replaced_and_only_its_episodes_are_truncated(
    lose: Callable[[psutil.Process], None],
    worker: int,
    settings: dict[str, Any],
    cause: str,
    make_env: MakeEnv,
    caplog: pytest.LogCaptureFixture,
) -> None:
    env, calm = make_env(num_envs=8, num_workers=2, **settings), make_env(num_envs=8)
    actions = torch.rand(30, 8, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    ours, theirs = env.reset(), calm.reset()
    for action in actions[:10]:
        ours = env.step_and_maybe_reset(ours.set("action", action))[1]
        theirs = calm.step_and_maybe_reset(theirs.set("action", action))[1]
    last, pids = ours["observation"].clone(), env.worker_pids
    arms = torch.arange(8) // 4 == worker
    lose(psutil.Process(pids[worker]))
    assert cause.startswith("has not") or _ends(pids[worker])

    step, ours = env.step_and_maybe_reset(ours.set("action", actions[10]))
    expected, theirs = calm.step_and_maybe_reset(theirs.set("action", actions[10]))
    after = step["next"]
    assert torch.equal(after["truncated"].squeeze(-1), arms)
    assert not after["terminated"].any()
    assert (after["reward"][arms] == 0).all()
    assert torch.equal(after["observation"][arms], last[arms])
    assert (after[~arms] == expected["next"][~arms]).all()
    assert env.worker_pids[1 - worker] == pids[1 - worker]
    assert env.worker_pids[worker] != pids[worker]
    assert f"worker {worker} (process {pids[worker]}) {cause}" in caplog.text
    assert f"arms {4 * worker} to {4 * worker + 3}" in caplog.text
    assert _ends(pids[worker])
    assert env.metrics()["workers/lost_episodes"] == 4
    assert env.metrics()["workers/lost_episodes"] == 0

    for action in actions[11:]:
        step, ours = env.step_and_maybe_reset(ours.set("action", action))
        expected, theirs = calm.step_and_maybe_reset(theirs.set("action", action))
        assert not step["next", "truncated"].any()
        assert (step["next"][~arms] == expected["next"][~arms]).all()
        moved = step["next", "observation"] - step["observation"]
        assert moved.abs().amax(-1).min() > 0, "every arm is simulated again"


def test_close_does_not_wait_long_for_stopped_workers(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.fanuc.worker_pool.SECONDS_TO_END", 0.2)
    env = make_env(num_envs=8, num_workers=2)
    pids = env.worker_pids
    for pid in pids:
        psutil.Process(pid).suspend()
    env.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_program_that_was_stopped_itself_loses_no_worker(start: Start, tmp_path: Path) -> None:
    def script() -> None:
        env = FanucEnv(num_envs=2, num_workers=1, step_timeout=1.0)
        root, pids = env.reset(), env.worker_pids
        sys.stdout.write("ready\n")
        left = 100
        while left:
            left -= (tmp_path / "continued").exists()
            root = env.step_and_maybe_reset(root.set("action", torch.zeros(2, 6)))[1]
        assert env.worker_pids == pids

    program = start(program=script)
    program.wait_for("not ready", lambda: program.output)
    os.killpg(program.pid, signal.SIGSTOP)
    time.sleep(1.5)
    (tmp_path / "continued").touch()
    os.killpg(program.pid, signal.SIGCONT)
    assert program.end() == 0


def test_workers_lost_again_and_again_end_the_run_in_one_line(make_env: MakeEnv) -> None:
    env = make_env()
    root = env.reset().set("action", torch.zeros(4, 6))
    for _ in range(MAX_LOSSES):
        psutil.Process(env.worker_pids[0]).kill()
        assert env.step(root)["next", "truncated"].all()
    psutil.Process(env.worker_pids[0]).kill()
    with pytest.raises(WorkerError, match=r"^worker 0 .*finished no step$"):
        env.step(root)


def test_a_step_may_be_undone_after_workers_were_lost_again_and_again(make_env: MakeEnv) -> None:
    env = make_env()
    root = env.reset().set("action", torch.zeros(4, 6))
    for _ in range(MAX_LOSSES):
        psutil.Process(env.worker_pids[0]).kill()
        env.step(root)
    env.begin_step(root)
    assert not env.step(root.clone())["next", "truncated"].any()


def test_a_worker_that_cannot_start_again_ends_the_run_in_one_line(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env()
    root = env.reset().set("action", torch.zeros(4, 6))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    psutil.Process(env.worker_pids[0]).kill()
    with pytest.raises(WorkerError, match=r"died with exit code 1, the last of 4 processes"):
        env.step(root)


def test_worker_that_died_idle_costs_the_next_episodes_nothing(make_env: MakeEnv) -> None:
    env, calm = (make_env(num_envs=8, num_workers=2) for _ in range(2))
    for each in (env, calm):
        each.reset()
        each.set_idle(torch.arange(8) >= 4)
    pid = env.worker_pids[1]
    psutil.Process(pid).kill()
    assert _ends(pid)
    zeros = torch.zeros(8, 6)
    for each in (env, calm):
        each.step(each.observe().set("action", zeros))
    ours, theirs = (each.step(each.reset().set("action", zeros)) for each in (env, calm))
    assert not ours["next", "truncated"].any()
    assert (ours["next"] == theirs["next"]).all()


def test_lost_arms_without_a_reset_continue_from_their_last_state(make_env: MakeEnv) -> None:
    env = make_env(num_envs=2)
    tensordict = env.reset().set("action", torch.full((2, 6), 0.3))
    env.step(tensordict)
    stood = env.joint_positions
    psutil.Process(env.worker_pids[0]).kill()
    assert env.step(tensordict)["next", "truncated"].all()
    assert torch.equal(env.joint_positions, stood)
    env.step(tensordict)
    moved = env.joint_positions - stood
    assert (moved > 0.01).all()
    assert (moved < 0.1).all()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
def test_interrupted_step_is_undone(make_env: MakeEnv) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    env, calm = make_env(num_envs=64), make_env(num_envs=64)
    ours, theirs = env.reset(), calm.reset()
    action = torch.full((64, 6), 0.2)
    interrupted = ours.clone().set("action", action)
    psutil.Process(env.worker_pids[0]).suspend()  # so that the step cannot end before
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            env.step(interrupted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for _ in range(3):
        step, ours = env.step_and_maybe_reset(ours.set("action", action))
        expected, theirs = calm.step_and_maybe_reset(theirs.set("action", action))
        assert torch.equal(step["next", "observation"], expected["next", "observation"])


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_workers_ignore_ctrl_c(make_env: MakeEnv) -> None:
    env = make_env()
    pids = env.worker_pids
    os.kill(pids[0], signal.SIGINT)
    assert not env.rollout(2)["next", "done"].any()
    assert env.worker_pids == pids


def test_close_leaves_no_process_and_no_file(make_env: MakeEnv) -> None:
    env = make_env(num_envs=8, num_workers=2)
    pids = env.worker_pids
    files = _shared_files(pids[0])
    assert files
    assert files <= _shared_files(os.getpid())
    env.close()
    env.close()
    assert not files & _shared_files(os.getpid()), "Windows keeps a file that is still mapped"
    assert not any(map(os.path.exists, files))
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        env.rollout(1)


def test_unclosed_environment_leaves_no_process_and_no_file() -> None:
    env = FanucEnv(num_envs=2, num_workers=1)
    pids = env.worker_pids
    files = _shared_files(pids[0])
    del env
    gc.collect()
    assert all(_ends(pid) for pid in pids)
    assert not any(map(os.path.exists, files))


@pytest.mark.parametrize("end", ["kill", "kill of all", "kill of a parent of a stopped worker"])
def test_killed_program_leaves_no_process_and_no_file(end: str, start: Start) -> None:
    if "stopped" in end and sys.platform != "linux":
        pytest.skip("only Linux ends stopped processes with their parent")

    def script() -> None:
        env = FanucEnv(num_envs=2, num_workers=1)
        env.rollout(2)
        sys.stdout.write(f"{env.worker_pids[0]}\n")
        time.sleep(3600)

    parent = start(program=script)
    parent.wait_for("no worker", lambda: parent.output.endswith("\n"))
    # PyBullet's messages are suppressed, so the output is that of the script alone.
    pid = int(parent.output)
    files = _shared_files(pid)
    if "stopped" in end:
        psutil.Process(pid).suspend()
    elif end == "kill of all":
        psutil.Process(pid).kill()
    parent.process.kill()
    assert _ends(pid)
    assert files
    assert not any(map(os.path.exists, files))


def test_worker_starts_without_torch() -> None:
    modules = "envs.fanuc.worker_process, envs.fanuc.simulation, sys"
    code = f"import {modules}; print('torch' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert output.stdout == "False\n"
    assert output.stderr == ""


@pytest.mark.slow
def test_memory_does_not_grow_over_many_resets(make_env: MakeEnv) -> None:
    env = make_env(num_envs=16, max_episode_steps=1)
    worker = psutil.Process(env.worker_pids[0])
    env.rollout(50, break_when_any_done=False)
    before = worker.memory_info().rss
    env.rollout(250, break_when_any_done=False)
    assert worker.memory_info().rss - before < 2_000_000


@pytest.mark.slow
def test_error_on_an_arm_that_pybullet_cannot_load(tmp_path: Path) -> None:
    text = Path(load_robot().urdf).read_text()
    own = tmp_path / "arm.urdf"
    own.write_text(text.replace("<capsule", '<mesh filename="none.stl"/><capsule', 1))
    with pytest.raises(ConfigurationError, match=r"torchrl-gpu robot .*arm\.urdf prints"):
        FanucEnv(num_envs=1, urdf=str(own))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name no display")
def test_demo_continues_if_no_window_can_be_opened(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DISPLAY", ":4321")
    env = make_env(mode="demo")
    assert env.rollout(2).shape == (4, 2)
    assert "no window" in caplog.text
