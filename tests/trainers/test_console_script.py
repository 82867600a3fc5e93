"""The console script `torchrl-gpu`, as pip installs it."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.program import Call
from torchrl_gpu import __version__
from trainers.run import main

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "python -m trainers.run agent=AGENT env=ENV"),
        (["agent=sac", "env=nowhere"], 2, "unknown env nowhere; choose one of: "),
        (["doctor", "--help"], 0, "torchrl-gpu doctor [setting=value ...]"),
        (["compare", "--help"], 0, "  torchrl-gpu compare runs/fanuc/sac "),
        (["replay", "--help"], 0, "Settings:\n    checkpoint: run folder or newest checkpoint"),
        (["import-sb3", "--help"], 0, "torchrl-gpu import-sb3 model.zip"),
        (["robot", "-h"], 0, "torchrl-gpu robot arm.urdf"),
        (["--version"], 0, f"torchrl-gpu {__version__}\n"),
        (["compare", "x" * 300], 2, f"error: {'x' * 300}: File name too long"),
        (["doctor", "seconds=0"], 2, "error: seconds=0"),
        (["doctor", "seconds=inf"], 2, "error: seconds=inf"),
        (["robott", "arm.urdf"], 2, "error: robott: unknown command; did you mean robot?"),
    ],
)
def test_the_script_returns_the_exit_code_of_the_program(
    arguments: list[str],
    code: int,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = re.search(r'^torchrl-gpu = "(.+)"$', PROJECT.read_text(), re.MULTILINE)
    assert found is not None
    monkeypatch.setattr(sys, "argv", ["torchrl-gpu", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert EntryPoint("torchrl-gpu", found[1], "console_scripts").load()() == code
    printed = "".join(capsys.readouterr())
    assert output in printed
    assert "Raises:" not in printed


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the folder")
def test_a_deleted_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: the working directory has been deleted;")


@pytest.mark.parametrize("arguments", [["agent=sac", "--help"], ["compare", "--help"]])
def test_a_reader_may_take_less_than_the_whole_help(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as output:
        program = [sys.executable, "-m", "trainers.run", *arguments]
        ended = subprocess.run(program, stdout=output, stderr=subprocess.PIPE, cwd=PROJECT.parent)
    assert ended.returncode == 0
    assert not ended.stderr


RANDOM = ("mode=eval", "agent=random", "env=gym", "env.name=CartPole-v1", "device=cpu")


@pytest.mark.parametrize(
    "arguments", [[*RANDOM], [*RANDOM, "env.num_envs=1,2", "-m"]], ids=["run", "sweep"]
)
def test_a_run_succeeds_whose_reader_has_gone(
    arguments: list[str], program: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        ended = program(*arguments, "evaluation.episodes=1")
    assert ended.code == 0
    assert "error" not in ended.err
    results = [*Path().glob("runs/**/*.json")]
    assert len(results) == (2 if "-m" in arguments else 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file of Linux")
@pytest.mark.parametrize("arguments", [["agent=sac", "--help"], ["doctor", "--help"], [*RANDOM]])
def test_an_output_on_a_full_disk_is_named_in_one_line(
    arguments: list[str], program: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = ["evaluation.episodes=1"] if "--help" not in arguments else []
    with Path("/dev/full").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        ended = program(*arguments, *episodes)
    assert ended.code == 2
    assert ended.error == "cannot write the output: No space left on device"


def test_a_run_succeeds_without_any_output(program: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert program(*RANDOM, "evaluation.episodes=1").code == 0


SCRIPT = "import sys\nfrom trainers.run import main\nsys.exit(main())\n"


@pytest.mark.parametrize(
    ("start", "folders"),
    [
        (["bin/torchrl-gpu"], ["agents", "configs", "envs", "trainers"]),
        (["-m", "trainers.run"], ["agents", "configs", "envs"]),  # Python finds trainers first
    ],
)
def test_working_directory_has_classes_and_folders_with_the_names_of_our_packages(
    start: list[str], folders: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrl-gpu").write_text(SCRIPT)
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "my_robots.py").write_text("from agents import SAC\nclass Mine(SAC): ...\n")
    arguments = ["agent._target_=my_robots.Mine", "env=marinenav", "device=cpu", "--cfg", "job"]
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "_target_: my_robots.Mine" in done.stdout


def test_imported_package_with_the_name_of_ours_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    own = ModuleType("envs")
    own.__path__ = [str(tmp_path / "envs")]
    monkeypatch.setitem(sys.modules, "envs", own)
    said = program("agent=sac", "env=fanuc", "--cfg", "job").refusal()
    assert said.startswith(f"{tmp_path / 'envs'}: it has the name of a package of torchrl-gpu; ")
