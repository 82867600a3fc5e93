"""The command `torchrl-gpu redirect`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from torchrl_gpu.redirect import __main__ as command
from trainers import run

Call = Callable[..., int]
ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys
import torch
import beside

if __name__ == "__main__":
    print(sys.argv, beside.NAME, torch.ones(1).cuda().device)
"""

# Its threads go on after its last line, and one of them waits for the end of the interpreter.
SCRIPT_WITH_THREADS = """
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, Timer
import agents
import torch

def show():
    print(agents.NAME, torch.ones(1).cuda().device)

ThreadPoolExecutor(1).submit(show).result()
starter = Thread(target=lambda: Timer(0.1, show).start())  # the timer outlives this thread
starter.start()
starter.join()
assert multiprocessing.get_start_method(allow_none=True) is None
sys.exit(3)
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Return the command, with a folder of scripts in the working folder."""
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)

    def called(*arguments: str, **files: str) -> int:
        for name, text in files.items():
            (tmp_path / "scripts" / f"{name}.py").write_text(text)
        return command.main(list(arguments))

    yield called
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in {"beside", "scripts"}:
            del sys.modules[name]


def test_a_script_runs_as_with_python(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.argv), list(sys.path)
    code = call("device=cpu", "scripts/main.py", "-x", "1", main=SCRIPT, beside="NAME = 'beside'")
    out, err = capsys.readouterr()
    assert code == 0
    assert out.splitlines() == ["['scripts/main.py', '-x', '1'] beside cpu"]
    assert err.startswith("cuda is redirected to cpu (")
    assert len(err.splitlines()) == 1
    assert (sys.argv, sys.path) == before


def test_the_accelerator_of_the_machine_is_chosen(
    call: Call,
    accelerator: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "resolve_device", lambda name: accelerator)
    assert call("scripts/main.py", main=SCRIPT, beside="NAME = 1") == 0
    out, err = capsys.readouterr()
    assert out == f"['scripts/main.py'] 1 {accelerator}\n"
    assert err.startswith(f"cuda is redirected to {accelerator} (")


def test_a_module_runs_as_with_python(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    code = call("-m", "scripts.main", "3", main="import sys; print(__name__, sys.argv[1:])")
    assert code == 0
    assert capsys.readouterr().out == "__main__ ['3']\n"


def test_the_exit_code_of_a_script_passes_through(call: Call) -> None:
    with pytest.raises(SystemExit) as end:
        call("scripts/main.py", main="raise SystemExit(7)")
    assert end.value.code == 7


def test_a_traceback_shows_the_script_alone(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    has_cuda = torch.cuda.is_available()
    assert call("scripts/main.py", main="def f():\n    1 / 0\n\nf()\n") == 1
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert shown.count('  File "') == 2
    assert torch.cuda.is_available() == has_cuda


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "the script is missing"),
        (["-m"], "the script is missing"),
        ([""], "the script is missing"),
        (["scripts"], "scripts: a folder without __main__.py; name a script"),
        (["missing.py", "1"], "missing.py: file not found"),
        (["-m", "missing.module"], "-m missing.module: module not found"),
        (["-m", ".relative"], "-m .relative: module not found"),
        (["device=abacus", "scripts"], "device=abacus is not one of"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], error: str, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {error}")


def test_a_process_is_redirected_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text("NAME = 'own'")
    script = tmp_path / "main.py"
    script.write_text(SCRIPT_WITH_THREADS)
    arguments = [sys.executable, "-m", "torchrl_gpu.redirect", "device=cpu", str(script)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "own cpu\n" * 2), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="execv")
def test_the_console_script_hands_over_to_a_new_interpreter(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execv(path: str, words: list[str]) -> None:
        assert [path, "-m", "torchrl_gpu.redirect"] == words[:3]
        raise SystemExit(call(*words[3:]))

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["torchrl-gpu", "redirect", "--help"])
    with pytest.raises(SystemExit) as end:
        run.main()
    assert end.value.code == 0
    assert "torchrl-gpu redirect [device=NAME] script.py" in capsys.readouterr().out
