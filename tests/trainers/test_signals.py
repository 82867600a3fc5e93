"""Signals that end a training: it is saved, and the printed command resumes it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state
from trainers.run import run

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs the signals of Unix")

ROOT = Path(__file__).parents[2]
COMMAND = (
    *("agent=dqn", "env=gym", "env.name=CartPole-v1", "env.vectorization=async"),
    *(
        "env.num_envs=2",
        "device=cpu",
        "trainer.total_frames=100_000_000",
        "trainer.log_interval=500",
    ),
    *("trainer.evaluation_interval=100_000_000", "trainer.checkpoint_interval=100_000_000"),
)


def to_process(number: int) -> Callable[[int], None]:
    """Return a function that sends a signal to the process that trains."""
    return lambda pid: os.kill(pid, number)


def to_group(number: int) -> Callable[[int], None]:
    """Return a function that sends a signal to it and the processes of its environments."""
    return lambda pid: os.killpg(pid, number)


SIGNALS = {
    "SIGINT": to_process(signal.SIGINT),
    "SIGHUP": to_process(signal.SIGHUP),
    "SIGTERM to the group": to_group(signal.SIGTERM),
}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen]]:
    """Trainings by the name of a signal, all started at once; each in its own folder and group."""
    running = {}
    # Under nohup the tests ignore it, and so would the trainings.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in SIGNALS:
        folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
        running[name] = subprocess.Popen(
            [sys.executable, "-m", "trainers.run", *COMMAND],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        running[name].folder = folder  # type: ignore[attr-defined]
    signal.signal(signal.SIGHUP, inherited)
    yield running
    for process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_saves_the_run_and_prints_the_command_that_resumes_it(
    name: str, trainings: dict[str, subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = trainings[name]
    folder: Path = process.folder  # type: ignore[attr-defined]
    for _ in range(1_000):
        if list(folder.glob("runs/**/metrics.csv")) or process.poll() is not None:
            break
        time.sleep(0.1)
    SIGNALS[name](process.pid)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    stopped = re.search(r"Stopped at ([\d,]+) frames; saved. To resume:\n  (.*)\n", output)
    assert stopped is not None, output
    frames = int(stopped[1].replace(",", ""))
    python, _, module, checkpoint, device = shlex.split(stopped[2])
    assert (python, module) == ("python", "trainers.run")
    monkeypatch.chdir(folder)
    newest = find_checkpoint(checkpoint.removeprefix("checkpoint="))
    assert load_state(newest)["frames"] == frames >= 500
    if name == "SIGHUP":
        quick = (f"trainer.total_frames={frames + 20}", "trainer.evaluation_episodes=2")
        assert run(checkpoint, device, *quick, "evaluation.episodes=2").newest != newest
