"""Signals: they end the program without a traceback; a training is saved, and goes on later."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import psutil
import pytest
import torch
from tensordict import TensorDictBase
from torch.distributed.launcher.api import LaunchConfig

from envs import GymnasiumEnv
from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import CAN_FORK, fork_server
from tests.helpers.program import changed
from tests.helpers.programs import PATIENCE, Program, Start
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import Processes
from trainers import ranks, signals
from trainers.run import main, run

pytestmark = pytest.mark.skipif(
    not CAN_FORK, reason="needs the signals of Unix, and fork, by which a run starts soon"
)

ROOT = Path(__file__).parents[2]
LONG = (
    *("experiment=null", "device=cpu", "compile=off", "trainer.total_frames=100_000_000"),
    *("trainer.log_interval=20", "agent.utd_ratio=0.1", "agent.batch_size=16"),
    *("trainer.random_frames=100", "trainer.replay_capacity=10_000"),
    "trainer.evaluation_interval=100_000_000",
    *("trainer.checkpoint_interval=100_000_000", "evaluation.episodes=2"),
)
GYM = ("agent=dqn", "env=gym", "env.name=CartPole-v1", "env.vectorization=async", "env.num_envs=2")
FANUC = ("agent=sac", "env=fanuc", "env.num_envs=2", "env.num_workers=2")
EXIT_CODES = {signal.SIGINT: 130}  # of other signals 75


def saved(program: Program) -> tuple[int, list[str]]:
    """Return the frames of the newest checkpoint, and the arguments of the printed command."""
    stopped = re.search(r"Stopped at ([\d,]+) frames; saved. To resume:\n  (.*)\n", program.output)
    assert stopped is not None, program.output
    python, _, module, *arguments = shlex.split(stopped[2])
    assert (python, module) == ("python", "trainers.run")
    folder = program.folder / arguments[0].removeprefix("checkpoint=")
    frames = int(stopped[1].replace(",", ""))
    assert load_state(find_checkpoint(folder))["frames"] == frames
    return frames, arguments


# The workers of an environment receive only the signals to the group.
@pytest.mark.parametrize(
    ("env", "send", "number"),
    [
        pytest.param(GYM, os.kill, "SIGUSR1", id="gym-process-SIGUSR1"),
        pytest.param(FANUC, os.killpg, "SIGINT", id="fanuc-group-SIGINT"),
        pytest.param(GYM, os.killpg, "SIGINT", id="gym-group-SIGINT"),
        pytest.param(GYM, os.killpg, "SIGHUP", id="gym-group-SIGHUP"),
    ],
)
def test_a_signal_saves_the_run_and_prints_the_command_that_resumes_it(
    env: tuple[str, ...],
    send: Callable[[int, int], None],
    number: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = start(*env, *LONG)
    program.wait_for_training()
    sent = signal.Signals[number]
    send(program.pid, sent)
    assert program.end() == EXIT_CODES.get(sent, 75), program.output
    frames, (checkpoint, device) = saved(program)
    assert frames >= 20
    if number == "SIGHUP":
        monkeypatch.chdir(program.folder)
        quick = (f"trainer.total_frames={frames + 200}", "trainer.evaluation_episodes=2")
        outcome = run(checkpoint, device, *quick, "evaluation.episodes=2")
        assert find_checkpoint(outcome.folder).stem > f"frames_{frames:012d}"


class Sleeper:
    def __del__(self) -> None:
        time.sleep(2)


class SlowEnv(IdentityEnv):
    """Takes its time to build, or for its steps from the 30th one on."""

    capabilities = replace(IdentityEnv.capabilities, can_render=True)

    def __init__(
        self,
        num_envs: int = 2,
        mode: str = "train",
        slow_in: str = "",
        seconds: float = 3600.0,
        turns: str = "",
    ) -> None:
        super().__init__(num_envs, max_episode_steps=20)
        self.is_slow = mode == slow_in
        self.seconds = seconds
        self.count = 0
        if slow_in == f"building {mode}":
            sys.stdout.write("builds\n")
            if turns == "lost":
                Sleeper()
            try:
                time.sleep(seconds)
            except KeyboardInterrupt:
                if turns == "another error":
                    raise RuntimeError(turns) from None
                raise

    def render(self, index: Any = 0) -> torch.Tensor:
        return torch.zeros(64, 64, 3, dtype=torch.uint8)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        if self.is_slow and self.count >= 30:
            sys.stdout.write("steps\n")
            time.sleep(self.seconds)
        return super()._step(tensordict)


OF_REPLAYS = ("agent.", "trainer.r")  # not PPO's
SLOW = (
    *("agent=ppo", f"env._target_={__name__}.SlowEnv", "agent.rollout_length=4"),
    *(setting for setting in LONG if not setting.startswith(OF_REPLAYS)),
)


@pytest.mark.parametrize(
    ("number", "interval", "said"),
    [
        (
            signal.SIGINT,
            40,
            r" To resume from frames_000000000040.safetensors:\n  .* checkpoint={run_folder} ",
        ),
        (signal.SIGTERM, 4000, " Nothing has been saved yet.\n"),
    ],
)
def test_a_second_signal_ends_the_run_at_once(
    interval: int,
    said: str,
    number: signal.Signals,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    saves = f"trainer.checkpoint_interval={interval}"
    # A shell lets jobs that end with `&` ignore Ctrl-C.
    program = start(*changed(SLOW, saves), "env.slow_in=train", ignores_ctrl_c=True)
    program.wait_for("no slow step", lambda: "steps" in program.output)
    os.kill(program.pid, number)
    time.sleep(1.5)  # longer than one request may take, also where the first one is handled late
    os.kill(program.pid, number)
    assert program.end() == EXIT_CODES.get(number, 75)
    (run_folder,) = program.folder.glob("runs/*/*/*")
    said = said.format(run_folder=run_folder.relative_to(program.folder))
    assert re.search(rf"\nEnded at once\.{said}", program.output)


def test_a_reader_that_has_gone_changes_neither_the_last_checkpoint_nor_the_exit_code(
    start: Start, tmp_path: Path
) -> None:
    def into_pipe() -> None:
        sys.stdout = sys.stderr = pipe.open("w", buffering=1)
        os._exit(main())  # multiprocessing would write the rest of the output, and fail

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = start(*GYM, *LONG, program=into_pipe)
    reader = os.open(pipe, os.O_RDONLY)
    program.wait_for_training()
    os.close(reader)
    os.killpg(program.pid, signal.SIGHUP)
    assert program.end() == 75
    assert list(program.folder.glob("runs/**/frames_*.safetensors"))


def of_long_requests() -> int:
    """Be the program, for which signals within a minute are one request."""
    with mock.patch.object(signals, "SECONDS_OF_ONE_REQUEST", 60.0):
        return main()


def test_a_signal_that_arrives_twice_at_once_is_one_request(start: Start) -> None:
    """As of `timeout`, which signals the program and then their group."""
    program = start(*SLOW, "env.slow_in=train", "env.seconds=2.0", program=of_long_requests)
    program.wait_for("no slow step", lambda: "steps" in program.output)
    os.kill(program.pid, signal.SIGTERM)
    time.sleep(0.1)
    os.kill(program.pid, signal.SIGTERM)
    assert program.end() == 75
    saved(program)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_during_the_imports_ends_the_program_at_once(
    number: signal.Signals, tmp_path: Path
) -> None:
    if not Path("/proc/self/maps").exists():
        pytest.skip("cannot see what the program imports")
    process = subprocess.Popen(
        [sys.executable, "-m", "trainers.run", *GYM, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    maps = Path(f"/proc/{process.pid}/maps")
    while "/torch/" not in maps.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (EXIT_CODES.get(number, 75), "")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_a_sweep_imports_its_modules_is_not_lost(start: Start) -> None:
    def catch_all(*_: str) -> NoReturn:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise ConfigurationError("went on")

    def signaled() -> int:
        with mock.patch("trainers.run.settings_of", catch_all):
            return main()

    program = start("-m", "seed=1,2", *GYM, program=signaled)
    assert (program.end(), program.output) == (75, "")


def test_no_signal_interrupts_what_libraries_clean_up_at_exit() -> None:
    """As ray does, which torchrl imports."""
    code = (
        "import atexit, signal, sys; from trainers.run import main; "
        "atexit.register(print, 'cleaned up'); "
        "atexit.register(signal.raise_signal, signal.SIGINT); "
        "atexit.register(signal.raise_signal, signal.SIGUSR1); "
        "sys.argv = ['torchrl-gpu', 'compare', '--help']; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("cleaned up\n")


@pytest.mark.parametrize(
    ("number", "turns"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, "another error"),  # as a library does to the exception
        (signal.SIGTERM, "lost"),  # as in a destructor
    ],
)
def test_a_signal_while_the_environment_is_built_leaves_nothing(
    number: signal.Signals, turns: str, start: Start
) -> None:
    program = start(*SLOW, "env.slow_in=building train", f"env.turns={turns}")
    program.wait_for("not built", lambda: "builds" in program.output)
    os.kill(program.pid, number)
    assert program.end() == EXIT_CODES.get(number, 75)
    assert program.output == "builds\n"
    assert not (program.folder / "runs").exists()


def test_a_signal_ends_a_sweep_though_a_library_turns_it_into_another_error(start: Start) -> None:
    turned = ("env.slow_in=building train", "env.turns=another error")
    program = start("-m", "seed=1,2", *SLOW, *turned)
    program.wait_for("not built", lambda: "builds" in program.output)
    os.kill(program.pid, signal.SIGTERM)
    assert program.end() == 75
    assert program.output.count("builds") == 1
    assert program.output.endswith(
        "\nTo go on with the sweep, repeat its command with resume=auto.\n"
    )


def test_a_signal_while_workers_start_is_not_an_error_of_the_arm(start: Start) -> None:
    program = start(*FANUC, *LONG)
    workers = psutil.Process(program.pid)
    program.wait_for("no workers", lambda: len(workers.children()) == 2)
    os.killpg(program.pid, signal.SIGTERM)
    assert program.end() == 75
    assert program.output == ""


def test_a_signal_while_a_resumed_run_is_built_shows_how_to_resume_it(start: Start) -> None:
    first = start(*SLOW)
    first.wait_for_training()
    os.kill(first.pid, signal.SIGTERM)
    assert first.end() == 75
    frames, (checkpoint, *rest) = saved(first)
    program = start(checkpoint, *rest, "env.slow_in=building train")
    program.wait_for("not built", lambda: "builds" in program.output)
    os.kill(program.pid, signal.SIGUSR1)
    assert program.end() == 75
    assert f"To resume from frames_{frames:012d}.safetensors:\n" in program.output
    assert f"{checkpoint} {' '.join(rest)}\n" in program.output


def test_a_signal_in_an_evaluation_saves_the_run(start: Start) -> None:
    # Eleven seconds, in steps of a third of a second.
    often = ("trainer.evaluation_interval=200", "trainer.evaluation_episodes=9999")
    program = start(*GYM, *changed(LONG, *often))
    program.wait_for("no evaluation", lambda: list(program.folder.glob("runs/**/frames_*200.s*")))
    os.killpg(program.pid, signal.SIGTERM)
    assert program.end() == 75
    assert saved(program)[0] == 200


def test_a_signal_in_the_closing_evaluation_shows_how_to_evaluate(start: Start) -> None:
    short = ("trainer.total_frames=40", "trainer.evaluation_episodes=1", "evaluation.episodes=4")
    program = start(*changed(SLOW, *short), "evaluation.num_envs=1", "env.slow_in=eval")
    program.wait_for("no slow step", lambda: "steps\n" in program.output)
    os.kill(program.pid, signal.SIGTERM)
    assert program.end() == 75
    assert "Trained for 40 frames; saved. To evaluate:\n" in program.output
    assert " mode=eval checkpoint=runs/" in program.output


def signaled_after_its_training() -> int:
    """Be the program, which a signal reaches before the evaluation that ends a run."""
    apart = Processes.apart

    def signaled(processes: Processes, *patience: timedelta) -> Processes:
        if patience:
            signal.raise_signal(signal.SIGTERM)
        return apart(processes, *patience)

    with mock.patch.object(Processes, "apart", signaled):
        return main()


def test_a_signal_before_the_closing_evaluation_shows_how_to_resume(start: Start) -> None:
    short = ("trainer.total_frames=200", "trainer.evaluation_episodes=1")
    program = start(*GYM, *changed(LONG, *short), program=signaled_after_its_training)
    assert program.end() == 75
    assert saved(program)[0] == 200


@pytest.mark.parametrize(
    ("mode", "send"),
    [("eval", os.kill), ("demo", os.killpg), ("record", os.kill)],
    ids=["eval", "demo-group", "record"],
)
def test_a_signal_in_a_mode_without_training_leaves_nothing_but_a_line(
    mode: str, send: Callable[[int, int], None], start: Start
) -> None:
    slow = (
        ("env.slow_in=demo",) if mode == "demo" else ("env.slow_in=eval", "evaluation.num_envs=1")
    )
    env = f"env._target_={__name__}.SlowEnv"
    written = ("record.format=lerobot",) if mode == "record" else ()  # Minari needs Python 3.11
    program = start(f"mode={mode}", "agent=random", env, *slow, *written, "device=cpu")
    program.wait_for("no slow step", lambda: "steps\n" in program.output)
    send(program.pid, signal.SIGINT)
    assert program.end() == 130
    said = f"\nmode={mode} was interrupted; nothing unfinished is left.\n"
    assert program.output.endswith(said)
    assert not (program.folder / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        (),
        pytest.param(
            ("devices=2",),
            marks=pytest.mark.skipif(num_cores() < 2, reason="one process for each core"),
        ),
    ],
)
def test_a_script_s_own_handler_is_called_once_the_run_is_saved(
    settings: tuple[str, ...], start: Start
) -> None:
    """As of submitit, which queues the job anew."""

    def script() -> int:
        def queue_anew(number: int, frame: object) -> None:
            newest = find_checkpoint(next(Path().glob("runs/*/*/*/*")))
            sys.stdout.write(f"newest: {newest.name}\n")
            sys.exit(33)

        signal.signal(signal.SIGUSR2, queue_anew)
        if settings:
            fork_server()
        config = partial(LaunchConfig, start_method="forkserver")
        with mock.patch.object(ranks, "LaunchConfig", config):
            run(*GYM, *LONG, *settings)
        return 0

    program = start(program=script)
    program.wait_for_training()
    os.kill(program.pid, signal.SIGUSR2)
    assert program.end() == 33
    assert "newest: frames_" in program.output


def test_a_script_that_leaves_workers_open_ends(start: Start) -> None:
    def script() -> int:
        env = GymnasiumEnv(name="CartPole-v1", num_envs=2, vectorization="async")
        sys.modules["left open"] = env
        return 7

    program = start(program=script)
    assert program.end() == 7


class CalmEnv(GymnasiumEnv):
    """Leaves the cores to the viewer."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        time.sleep(0.2)
        return super()._step(tensordict)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl_c", "kill"])
def test_the_viewer_ends_with_the_training(number: int, start: Start) -> None:
    env = (f"env._target_={__name__}.CalmEnv", "env.name=CartPole-v1", "env.num_envs=2")
    program = start("agent=dqn", *env, *LONG, "viewer=web", "viewer_port=0")
    program.wait_for("no address", lambda: "watch it at http://localhost:" in program.output)
    (viewer,) = psutil.Process(program.pid).children()
    assert viewer.nice() > psutil.Process(program.pid).nice()
    os.kill(program.pid, number)
    program.end()


def test_workers_end_with_a_program_that_is_killed(start: Start) -> None:
    program = start(*GYM, *LONG)
    program.wait_for_training()
    workers = psutil.Process(program.pid).children()
    program.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert len(workers) >= 2
    assert not alive
