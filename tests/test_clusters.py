"""The scripts of docs/clusters.md, with stand-ins for the commands of SLURM and for submitit."""

import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensordict import TensorDictBase

from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import CAN_FORK, forked
from tests.helpers.interpreters import quick_interpreter
from tests.helpers.programs import PATIENCE

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs fork and the signals of Unix")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "clusters.md").read_text()


class WaitingEnv(IdentityEnv):
    """Simulates slowly until a file in the working folder says that it may go on."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not Path("goes on").exists():
            time.sleep(0.02)
        return super()._step(tensordict)


SHORT = (
    *(f"env._target_={__name__}.WaitingEnv", "agent=ppo", "agent.rollout_length=4", "device=cpu"),
    *("agent.epochs=1", "agent.hidden_sizes=[8]"),
    *("env.num_envs=2", "trainer.total_frames=400", "trainer.log_interval=20"),
    *("trainer.evaluation_episodes=2", "evaluation.episodes=2"),
)


def scripts(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def wait_for(holds: Callable[[], object]) -> None:
    for _ in range(9_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happens")


class Cluster:
    """A folder for the runs of a script, and one of the commands that it calls."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder = folder
        self.queued = folder / "queued"
        for name, code in {
            "srun": 'shift; exec "$@"',
            "scontrol": f'echo "$@" >> {self.queued}',
        }.items():
            (commands / name).write_text(f"#!/bin/sh\n{code}\n")
            (commands / name).chmod(0o755)
        path = f"{commands}:{os.environ['PATH']}"
        slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1"}
        self._environment = {**os.environ, **slurm, "PATH": path, "PYTHONPATH": str(ROOT)}

    def start(self, script: str) -> subprocess.Popen[str]:
        script = script.replace("agent=sac env=fanuc", " ".join(SHORT))
        return subprocess.Popen(
            ["bash", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environment,
        )

    def is_training(self) -> bool:
        return bool(list(self.folder.glob("runs/**/metrics.csv")))

    def let_go_on(self) -> None:
        (self.folder / "goes on").touch()

    def check_that_one_run_has_ended(self) -> None:
        (summary,) = self.folder.glob("runs/**/summary.json")
        assert '"ended": true' in summary.read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    commands = tmp_path / "bin"
    commands.mkdir()
    with quick_interpreter(commands):
        yield Cluster(tmp_path, commands)


def signal_trainings(job: subprocess.Popen[str], number: int) -> None:
    """Signal all processes of a job but its shells, as SLURM signals the steps of a job."""
    for process in psutil.Process(job.pid).children(recursive=True):
        if "trainers.run" in process.cmdline():
            process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["srun", "B:USR1"])
def test_a_job_is_queued_anew_until_its_run_has_ended(way: str, cluster: Cluster) -> None:
    (script,) = [each for each in scripts("bash") if way in each]
    job = cluster.start(script)
    wait_for(cluster.is_training)
    if way == "srun":
        signal_trainings(job, signal.SIGUSR1)
    else:
        job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 75, output
    assert re.search(r"Stopped at [\d,]+ frames; saved. To resume:", output)
    assert cluster.queued.read_text() == "requeue 7\n"
    cluster.let_go_on()
    for said in ("Trained for 400 frames", "Trained already, for 400 frames"):
        job = cluster.start(script)
        output, _ = job.communicate(timeout=PATIENCE)
        assert (job.returncode, said in output) == (0, True), output
    assert cluster.queued.read_text() == "requeue 7\n"
    cluster.check_that_one_run_has_ended()


@pytest.mark.slow
def test_a_loop_starts_the_command_again(cluster: Cluster) -> None:
    (script,) = [each for each in scripts("bash") if each.startswith("until")]
    job = cluster.start(script)
    wait_for(cluster.is_training)
    cluster.let_go_on()
    signal_trainings(job, signal.SIGTERM)
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, output
    assert "saved. To resume:" in output
    assert "Trained for 400 frames" in output
    cluster.check_that_one_run_has_ended()


class Checkpointable:
    """As in submitit: queued anew as it is, with the same arguments."""

    def __submitit_checkpoint__(self, *arguments: Any) -> tuple[Any, ...]:
        return self, *arguments

    def __call__(self, *arguments: Any) -> Any:
        raise NotImplementedError


class AutoExecutor:
    """Calls a callable at once, with the handlers that submitit sets in a job."""

    def __init__(self, folder: str, slurm_max_num_timeout: int) -> None:
        pass

    def update_parameters(self, timeout_min: int, gpus_per_node: int, cpus_per_task: int) -> None:
        pass

    def submit(self, function: Checkpointable, *arguments: str) -> None:
        def queue_anew(number: int, frame: object) -> None:
            again, *_ = function.__submitit_checkpoint__(*arguments)
            Path("queued").write_text(type(again).__name__)
            sys.exit(33)

        signal.signal(signal.SIGUSR2, queue_anew)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        Path("report").write_text(function(*arguments))


@pytest.mark.slow
def test_submitit_queues_a_run_anew_once_it_is_saved(cluster: Cluster) -> None:
    (code,) = scripts("python")
    code = code.replace('"agent=sac", "env=fanuc"', ", ".join(f'"{each}"' for each in SHORT))

    def job() -> None:
        os.chdir(cluster.folder)
        submitit: Any = types.ModuleType("submitit")
        submitit.helpers = types.SimpleNamespace(Checkpointable=Checkpointable)
        submitit.AutoExecutor = AutoExecutor
        sys.modules["submitit"] = submitit
        exec(compile(code, "script", "exec", dont_inherit=True), {"__name__": "__main__"})

    first, second = (forked(job) for _ in range(2))
    first.start()
    wait_for(cluster.is_training)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGUSR2)
    first.join(PATIENCE)
    assert first.exitcode == 33
    assert cluster.queued.read_text() == "Training"
    assert list(cluster.folder.glob("runs/**/frames_*"))
    cluster.let_go_on()
    second.start()
    second.join(PATIENCE)
    assert second.exitcode == 0
    assert "Trained for 400 frames" in (cluster.folder / "report").read_text()
    cluster.check_that_one_run_has_ended()
