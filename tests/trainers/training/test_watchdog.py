"""Simulators that die or hang during a training: it goes on, or ends with its state."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDict, TensorDictBase

from agents import DQN, SAC
from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from tests.envs.gym.environments import MODULE
from tests.helpers.agents import build_for
from tests.helpers.environments import IdentityEnv
from tests.helpers.program import Call
from tests.helpers.programs import Start
from tests.helpers.training import metric_rows, train_briefly
from tests.trainers.training.test_saving import STEP, make
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.environments.environment import Mode
from trainers import Callback
from trainers.signals import stops
from trainers.training.metric_rows import MetricRows
from trainers.training.progress import ProgressDisplay
from trainers.training.trainer import TorchRLTrainer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")


class HangingEnv(IdentityEnv):
    """Hangs in the tenth step."""

    stall_seconds = 1.0
    steps_left = 10

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.steps_left -= 1
        if self.steps_left == 0:
            time.sleep(60)
        return super()._step(tensordict)


class DeadlockedEnv(HangingEnv):
    """Waits in the tenth step for a lock that nobody releases."""

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        if self.steps_left == 1:
            lock = ctypes.create_string_buffer(256)
            for _ in range(2):
                sys.stdout.write("ready\n")
                ctypes.CDLL(None).pthread_mutex_lock(lock)
        return super()._step(tensordict)


@contextmanager
def ctrl_c(text: str, log: pytest.LogCaptureFixture) -> Iterator[None]:
    """Send Ctrl-C to this process once the log has a text, but not after the block."""
    # A shell lets jobs that end with `&` ignore Ctrl-C.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.05):
            if text in log.text:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("place", ["training", "evaluation"])
def test_ctrl_c_saves_a_run_whose_simulator_hangs(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if place == "training":
        trainer = make(tmp_path, HangingEnv(STEP))
    else:
        trainer = make(tmp_path, evaluation_env=HangingEnv(STEP))
    with stops(trainer), ctrl_c("has not answered", caplog):
        trainer.train()
    assert trainer.stop_requested
    assert "HangingEnv has not answered for 1 s" in caplog.text
    assert f"{__file__}, line" in caplog.text
    frames = 9 * STEP if place == "training" else 20 * STEP  # the second evaluation
    assert trainer.checkpoints.latest() == trainer.checkpoints.path(frames)


def test_ctrl_c_in_a_script_saves_a_run_whose_simulator_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(tmp_path, HangingEnv(STEP))
    with ctrl_c("has not answered", caplog), pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.checkpoints.latest() == trainer.checkpoints.path(9 * STEP)


def test_slow_updates_and_waits_of_the_program_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Pause(Callback):
        def on_log(self, trainer: TorchRLTrainer, metrics: Mapping[str, float]) -> None:
            time.sleep(1.0)

    env = IdentityEnv(STEP)
    env.stall_seconds = 0.5
    trainer = make(tmp_path, env, callbacks=[Pause()], total_frames=13 * STEP)
    trainer.train()
    assert "answered" not in caplog.text
    assert signal.set_wakeup_fd(-1) == -1
    assert not [each for each in threading.enumerate() if each.name == "watchdog"]


@pytest.mark.skipif(sys.platform != "linux", reason="the lock is one of Linux")
def test_a_second_ctrl_c_ends_a_run_whose_simulator_never_returns_from_a_library(
    tmp_path: Path, start: Start
) -> None:
    def script() -> None:
        trainer = make(tmp_path, DeadlockedEnv(STEP), checkpoint_interval=4 * STEP)
        with stops(trainer):
            trainer.train()

    program = start(program=script)
    program.wait_for("not ready", lambda: program.output.count("ready\n") == 2)
    for _ in range(2):
        time.sleep(1.5)  # longer than one request may take, also where it is handled late
        os.kill(program.pid, signal.SIGINT)
    assert program.end() == 130
    newest = tmp_path / "checkpoints" / f"frames_{8 * STEP:012d}.safetensors"
    assert f"Ended within a step, with the checkpoint {newest}" in program.output
    assert load_state(newest)["frames"] == 8 * STEP


def make_gym(mode: Mode) -> GymnasiumEnv:
    """Return two environments in a process each."""
    options: dict[str, Any] = {"num_envs": 2, "vectorization": "async", "step_timeout": 0.5}
    return GymnasiumEnv(name=f"{MODULE}:Counter-v0", mode=mode, **options)


def make_fanuc(mode: Mode) -> FanucEnv:
    """Return two arms in a process each."""
    return FanucEnv(num_envs=2, num_workers=2, mode=mode, max_episode_steps=5, step_timeout=0.5)


class LoseProcess(Callback):
    """Kills or stops a process of the environments after the first row and first evaluation."""

    def __init__(self, number: int, evaluated: GymnasiumEnv | FanucEnv) -> None:
        self.number, self.evaluated, self.left = number, evaluated, {"log", "evaluation"}

    def on_log(self, trainer: TorchRLTrainer, metrics: Mapping[str, float]) -> None:
        self.lose("log", trainer.env)

    def on_evaluation(self, trainer: TorchRLTrainer, evaluation: object) -> None:
        self.lose("evaluation", self.evaluated)

    def lose(self, place: str, env: Any) -> None:
        if place in self.left:
            self.left.remove(place)
            is_gym = isinstance(env, GymnasiumEnv)
            pids = [x.pid for x in env._vector.processes] if is_gym else env.worker_pids
            os.kill(pids[1], self.number)


@pytest.mark.parametrize(
    ("build", "number"),
    [
        (make_gym, signal.SIGKILL),
        (make_fanuc, signal.SIGSTOP),
        pytest.param(make_gym, signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(make_fanuc, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_training_and_evaluation_go_on_without_a_process_that_dies_or_hangs(
    build: Callable[[Mode], GymnasiumEnv | FanucEnv],
    number: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    env, evaluated = build("train"), build("eval")
    trainer = train_briefly(
        env,
        build_for(env, DQN if build is make_gym else SAC),
        tmp_path,
        evaluation_env=evaluated,
        total_frames=80,
        random_frames=10,
        log_interval=20,
        evaluation_interval=40,
        evaluation_episodes=4,
        callbacks=[LoseProcess(number, evaluated)],
    )
    env.close()
    evaluated.close()
    assert trainer.frames == 80
    assert list(trainer.evaluations) == [40, 80]
    assert caplog.text.count("replaces it") == 2
    rows = [row["workers/lost_episodes"] for row in metric_rows(tmp_path)]
    assert [float(each) for each in rows if each] == [0, 1, 0, 0]


def test_a_process_that_dies_again_and_again_ends_the_run_in_one_line_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    fatal = tmp_path / "fatal"
    log = MetricRows.log

    def log_and_touch(rows: MetricRows, display: ProgressDisplay) -> None:
        log(rows, display)
        fatal.touch()

    monkeypatch.setattr(MetricRows, "log", log_and_touch)
    env = (f"env.name={MODULE}:Fatal-v0", "env.vectorization=async", "env.num_envs=2")
    quick = ("trainer.random_frames=1000", "trainer.log_interval=40", "device=cpu")
    command = ("agent=dqn", "env=gym", *env, f"env.options.file={fatal}", *quick)
    ended = program(*command)
    assert ended.code == 1
    _, error, text = ended.err.partition("error: process ")
    assert error
    assert text.count("\n") == 1
    assert text.endswith("in a row that finished no step\n")
    (saved,) = tmp_path.glob("runs/**/frames_*[0-9].safetensors")
    assert load_state(saved)["frames"] >= 40
