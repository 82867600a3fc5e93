"""Commands that the program prints, for the shell of the system."""

import sys

import pytest

from torchrl_gpu.commands import command_line

WORDS = ("torchrl-gpu", r"checkpoint=runs\sac", "sizes=[64,64]", 'path=["a b"]')


@pytest.mark.parametrize(
    ("platform", "line", "goes_on"),
    [
        ("linux", r"""torchrl-gpu 'checkpoint=runs\sac' 'sizes=[64,64]' 'path=["a b"]'""", "\\"),
        ("win32", r'''torchrl-gpu checkpoint=runs\sac "sizes=[64,64]" "path=[\"a b\"]"''', "^"),
    ],
)
def test_a_command_is_typed_as_the_system_has_it(
    platform: str, line: str, goes_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert command_line(WORDS) == line
    assert command_line(WORDS, "c=1", "d=2") == f"{line} {goes_on}\n  c=1 {goes_on}\n  d=2"
