"""Runs of a sweep as jobs of Hydra's launchers."""

import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil
import pytest

from tests.helpers.forks import CAN_FORK
from tests.helpers.interpreters import quick_interpreter
from tests.helpers.program import Call, changed
from tests.helpers.programs import Start
from trainers.run import end_of_job, main

ROOT = str(Path(__file__).parents[2])
SWEEP = (
    *("-m", "agent=ppo", "env=gym", "env.name=CartPole-v1", "env.num_envs=1", "experiment=null"),
    *("device=cpu", "agent.hidden_sizes=[8]", "agent.rollout_length=8", "agent.epochs=1"),
    *("trainer.total_frames=16", "trainer.evaluation_episodes=1", "evaluation.episodes=1"),
    *("trainer.loggers=[csv]", "trainer.show_progress=false"),
)
LOCAL = ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5")


@pytest.fixture(scope="module", autouse=True)
def _jobs_start_soon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not CAN_FORK:
        yield
        return
    with (
        quick_interpreter(tmp_path_factory.mktemp("bin")) as python,
        mock.patch.object(sys, "executable", str(python)),
    ):
        yield


needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs the extra `cluster`"
)


@pytest.mark.slow
@needs_submitit
def test_runs_are_jobs_of_submitit_and_their_table_comes_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT, prepend=os.pathsep)
    folder = (tmp_path / "runs").as_posix()
    sweep = (*SWEEP, *LOCAL, f"runs={folder}", "seed=1,2", "agent.gamma=0.9,2.0")
    code, output, errors = program(*sweep)
    assert code == 2
    assert re.findall(r"^error: run (\d) of 4: .*gamma", errors, re.MULTILINE) == ["2", "4"]
    rows = [line.split() for line in output.partition("\nseed ")[2].splitlines()[2:]]
    assert [(seed, gamma, result) for seed, gamma, result, *_ in rows] == [
        *(("1", "0.9", "return"), ("1", "2.0", "refused")),
        *(("2", "0.9", "return"), ("2", "2.0", "refused")),
    ]
    assert len({Path(row[-1]) for row in rows if (Path(row[-1]) / "summary.json").exists()}) == 2


@pytest.mark.slow
@needs_submitit
def test_a_run_that_fails_in_its_job_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT, prepend=os.pathsep)
    (tmp_path / "a_file").write_text("")
    ended = program(*SWEEP, *LOCAL, "seed=1", "runs=a_file/runs")
    assert ended.code == 2
    assert "error: run 1 of 1: " in ended.err
    assert "a_file" in ended.err
    assert "refused" in ended.out
    assert list(tmp_path.glob("runs/sweeps/*/.submitit/*/*_result.pkl"))


def test_settings_that_the_machine_of_a_job_lacks_are_refused_as_its_end() -> None:
    end = end_of_job(["agent=sac", "env=fanuc", "device=xpu:7"], alone=True)
    assert (end.code, end.result) == (2, "refused")
    assert end.text.startswith("device=xpu:7 is not available")


@pytest.mark.slow
@needs_submitit
def test_the_ends_of_other_jobs_outlive_one_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    (tmp_path / "deadly.py").write_text(
        "import gymnasium, os\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Deadly(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        os._exit(9)\n"
        "gymnasium.register('Deadly-v0', Deadly, max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = "env.name=CartPole-v1,deadly:Deadly-v0"
    arguments = [each for each in SWEEP if each != "env.name=CartPole-v1"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "end_1.json").write_text('[0, "", "of an earlier sweep", ""]')
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)
    sweep = (*arguments, *LOCAL, names, "hydra.sweep.dir=logs")
    ended = program(*sweep)
    assert ended.code == 1
    table = ended.out.partition("\nenv.name ")[2]
    assert re.search(r"^CartPole-v1 +return .*/CartPole-v1/ppo/", table, re.MULTILINE)
    assert re.search(r"^deadly\S+Deadly-v0 +not finished", table, re.MULTILINE)


@pytest.mark.slow
@needs_submitit
def test_a_job_that_is_preempted_goes_on_with_its_run(tmp_path: Path, start: Start) -> None:
    long = ("resume=auto", "trainer.log_interval=50", "trainer.total_frames=2000")
    python = sys.executable

    def begin() -> int:
        sys.executable = python
        return main()

    command = (*changed(SWEEP, *long), *LOCAL)
    program = start(*command, program=begin, variables={"PYTHONPATH": ROOT})
    program.wait_for_training()
    (job,) = tmp_path.glob("runs/sweeps/*/.submitit/*/*_submitted.pkl")
    (process,) = psutil.Process(int(job.parent.name)).children()
    process.send_signal(signal.SIGUSR2)
    assert program.end() == 0, program.output
    assert "Trained for 2,000 frames" in program.output
    logged = job.with_name(f"{job.parent.name}_0_log.out").read_text()
    assert "Requeued job" in logged
    (folder,) = (path.parent for path in tmp_path.glob("runs/**/summary.json"))
    assert len(list(folder.glob("checkpoints/frames_????????????.safetensors"))) == 2


@needs_submitit
@pytest.mark.skipif(shutil.which("srun") is not None, reason="there is a SLURM cluster")
def test_a_launcher_that_fails_is_one_line(program: Call) -> None:
    ended = program(*SWEEP, "hydra/launcher=submitit_slurm")
    assert ended.code == 1
    assert "the launcher of the jobs has failed: RuntimeError: " in ended.error


@needs_submitit
def test_a_sweep_whose_runs_are_all_refused_starts_no_launcher(program: Call) -> None:
    ended = program(*SWEEP, *LOCAL, "agent.gamma=2,3")
    assert ended.code == 2
    assert "launcher" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hydra.launcher.timeout_min=5"], "hydra.launcher.timeout_min=5: the launcher is missing"),
        (["hydra/launcher=unknown"], "unknown"),
        (["hydra/launcher=basic", "hydra.launcher.unknown=5"], "unknown"),
    ],
)
def test_a_launcher_that_cannot_be_used_is_refused_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, program: Call
) -> None:
    ended = program(*SWEEP, *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert said in ended.error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("other_plugins", [True, False])
def test_a_missing_launcher_names_its_extra(
    other_plugins: bool, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    def find(name: str) -> None:
        if not other_plugins:  # `hydra_plugins`, the package around them, is missing too
            raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert 'pip install "torchrl-gpu[cluster]"' in program(*SWEEP, *LOCAL).refusal()
