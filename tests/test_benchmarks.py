import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import benchmarks
from benchmarks import compare, fanuc, fixture, versions
from benchmarks.kill import wait_for_end
from benchmarks.learning.results import Point, Run
from benchmarks.lift_cube_environments import row
from benchmarks.marinenav import measure
from benchmarks.measuring import Measurement, Samples, take_turns
from benchmarks.report import Figures
from benchmarks.stale import REPOSITORY, changes_since, git, measured, result_files
from envs.fanuc import FanucEnv
from torchrl_gpu.commands import read_arguments
from torchrl_gpu.errors import ConfigurationError

# Each command with its required arguments, and the packages of the extra that it needs.
LEARN = ("agent=dqn", "task=cartpole")
TRAIN = ("algorithm=dqn", "task=cartpole", "seed=0", "frames=10", "out=unwritten.json")
NEEDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("atari",): ("stable_baselines3",),
    ("fanuc",): ("stable_baselines3",),
    ("fanuc_learning",): ("matplotlib",),
    ("learning", *LEARN): ("matplotlib",),
    ("learning.report",): ("matplotlib",),
    ("stable_baselines", *TRAIN): ("stable_baselines3", "sb3_contrib"),
}
FOLDER = Path(benchmarks.__file__).parent
COMMANDS = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__main__")
    for path in FOLDER.rglob("*.py")
    if 'if __name__ == "__main__"' in path.read_text()
)

# Runs commands one after another in a process that cannot find the packages of the extra.
WITHOUT_EXTRA = """
import contextlib, importlib.machinery, io, json, runpy, sys, traceback

class WithoutExtra(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "sb3_contrib", "stable_baselines3"):
            return None
        return super().find_spec(name, path, target)

finders = sys.meta_path
finders[finders.index(importlib.machinery.PathFinder)] = WithoutExtra

def run(module, *arguments):
    sys.modules.pop(f"benchmarks.{module}", None)  # another command may have imported it
    sys.argv = [module, *arguments]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            runpy.run_module(f"benchmarks.{module}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code, said.getvalue()
        except BaseException:
            return 1, traceback.format_exc()

print(json.dumps([run(*command) for command in json.loads(sys.argv[1])]))
"""


class Outcome(NamedTuple):
    """Exit code of a command and its text on stderr."""

    code: int
    said: str


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], Outcome]:
    """Return the outcome of every command and of its `--help`, without the extra."""
    commands = [*NEEDS, *((command, "--help") for command in COMMANDS)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**os.environ, "PYTHONPATH": str(Path(benchmarks.__file__).parents[1])},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {command: Outcome(*outcome) for command, outcome in zip(commands, found, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("command", NEEDS, ids=" ".join)
def test_missing_extra_is_named_in_one_line(
    command: tuple[str, ...], outcomes: Mapping[tuple[str, ...], Outcome]
) -> None:
    code, said = outcomes[command]
    packages = ", ".join(NEEDS[command])
    missing = f"error: this benchmark: {packages} not installed"
    assert said == f'{missing}; pip install "torchrl-gpu[benchmark]"\n'
    assert code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_works_without_the_extra(
    command: str, outcomes: Mapping[tuple[str, ...], Outcome]
) -> None:
    assert outcomes[command, "--help"] == (0, "")


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("sizes=16", "write [16]"),
        ("sizes=[]", "at least 1 value"),
        ("sizes=[0]", "greater than or equal to 1"),
        ("sizes=[1,", "JSON"),
        ("--sizes", "unknown argument"),
        ("device=gpu", "this machine has"),
    ],
)
def test_bad_argument_is_refused(argument: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        measure(**read_arguments(measure, [argument]))


@pytest.mark.parametrize("benchmark", [measure, compare.measure])
def test_list_of_numbers_is_parsed(benchmark: Callable[..., Figures]) -> None:
    assert read_arguments(benchmark, ["sizes=[1,16]"]) == {"sizes": [1, 16]}


def test_sides_take_turns_after_a_round_that_warms_up() -> None:
    calls: list[str] = []

    def measurement(side: str) -> Measurement:
        def measure() -> float:
            calls.append(side)
            return float(len(calls))

        return measure

    samples = take_turns({side: measurement(side) for side in ("one", "two")}, rounds=2)
    assert calls == ["one", "two"] * 3
    assert samples.rates == {"one": [3.0, 5.0], "two": [4.0, 6.0]}
    assert samples.rate("one") == 4.0
    assert samples.ratio("two", "one") == (4 / 3 + 6 / 5) / 2


# Logs two rows, and goes on whatever signal asks it to stop.
ENDLESS = """
import pathlib, signal, time

signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("metrics.csv").write_text("frames,seconds\\n10,1.0\\n30,3.0\\n")
time.sleep(3600)
"""


def test_a_program_that_does_not_end_is_killed() -> None:
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(program, start_new_session=True)
    with pytest.raises(subprocess.TimeoutExpired):
        wait_for_end(process, 0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_training_that_does_not_stop_is_killed_once_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trainers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "run.py").write_text(ENDLESS)
    monkeypatch.setattr(versions, "_SECONDS_TO_STOP", 0.01)
    assert versions.frames_per_second(tmp_path, (), first_frame=10, frames=20) == 10.0


@pytest.mark.slow
def test_a_version_takes_gradient_steps_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_ROUND", 1)
    with versions.gradient_steps(REPOSITORY, ("agent=ppo", "long=false")) as measure:
        assert all(0 < measure() < 10_000 for _ in range(2))
    with (
        versions.gradient_steps(REPOSITORY, ("agent=abacus", "long=false")) as measure,
        pytest.raises(ConfigurationError, match="the agent ended"),
    ):
        measure()


def test_runs_that_never_learn_are_reported_as_such() -> None:
    learned = Run(0, 1.0, 100, 60.0, [Point(40, 20.0, 0.5), Point(80, 30.0, 0.95)])
    never = Run(1, 0.2, 100, 60.0, [Point(40, 20.0, 0.1), Point(80, 30.0, 0.2)])
    cells = ["4", "never", "0.5, never, never", "80, never, never", "95%, 20%, 20%"]
    assert row(4, [learned, never, never]) == cells


def test_every_number_of_processes_of_stable_baselines_has_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = {(part, arms): [100.0] for part in fanuc.WORDS for arms in (64, 512)}
    for processes, rate in ((2, 10.0), (8, 20.0)):
        rates |= {(f"sb3_{kind}", processes): [rate] for kind in ("collect", "training")}
    fanuc.report(Samples(rates), 64, 512, [2, 8])
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["training", "2", "10", "100", "10.0", "x"] in said
    assert ["training", "8", "20", "100", "5.0", "x"] in said


def test_sizes_are_those_of_fanuc() -> None:
    env = FanucEnv(num_envs=1, num_workers=1)
    try:
        assert env.observation_spec["observation"].shape[-1] == fixture.OBSERVATION_DIM
        assert env.action_spec.shape[-1] == fixture.ACTION_DIM
        assert len(env.discrete_actions) == fixture.NUM_ACTIONS
    finally:
        env.close()


def test_the_code_of_every_result_is_known() -> None:
    for file in result_files():
        assert all((REPOSITORY / path).exists() for path in measured(file.name)), file.name


def test_a_result_is_stale_once_its_code_changes(tmp_path: Path) -> None:
    result = tmp_path / "docs/results/fanuc.txt"

    def commit(path: str, text: str) -> str:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        git("add", "--all", repository=tmp_path)
        git(*author, "commit", "--quiet", "--message", f"Change {path}", repository=tmp_path)
        return git("rev-parse", "--short", "HEAD", repository=tmp_path)

    git("init", "--quiet", str(tmp_path))
    older = commit("envs/fanuc/env.py", "1")
    newer = commit("envs/fanuc/env.py", "2")
    commit("docs/results/fanuc.txt", "no commit named")
    commit("envs/gym/env.py", "1")
    assert changes_since(result, tmp_path) == []
    commit("docs/results/fanuc.txt", f"commit {newer}, 2 cores\n\ncommit {older}, 2 cores")
    assert changes_since(result, tmp_path) == [f"{newer} Change envs/fanuc/env.py"]
