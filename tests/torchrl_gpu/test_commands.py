"""Commands that the program prints, for the shell of the system."""

import sys

import pytest

from torchrl_gpu.commands import command_line

WORDS = ("torchrl-gpu", r"checkpoint=runs\sac", "sizes=[64,64]", 'path=["a b"]')


@pytest.mark.parametrize(
    ("platform", "line"),
    [
        ("linux", r"""torchrl-gpu 'checkpoint=runs\sac' 'sizes=[64,64]' 'path=["a b"]'"""),
        ("win32", r'''torchrl-gpu checkpoint=runs\sac "sizes=[64,64]" "path=[\"a b\"]"'''),
    ],
)
def test_a_command_is_typed_as_the_system_has_it(
    platform: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert command_line(WORDS) == line
