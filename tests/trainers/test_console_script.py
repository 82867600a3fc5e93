"""The console script `torchrl-gpu`, as pip installs it."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "python -m trainers.run agent=AGENT env=ENV"),
        (["agent=sac", "env=nowhere"], 2, "unknown env nowhere; choose one of: "),
        (["doctor", "--help"], 0, "torchrl-gpu doctor [setting=value ...]"),
        (["doctor", "seconds=0"], 2, "error: seconds=0"),
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
    main = EntryPoint("torchrl-gpu", found[1], "console_scripts").load()
    assert main() == code
    assert output in "".join(capsys.readouterr())
