"""Calls of the command line program."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from torchrl.envs import EnvBase

from torchrl_gpu.environments.environment import Environment
from trainers import run
from trainers.components.component import Component


class Ended(NamedTuple):
    """Exit code of a call of the program, and the texts of its two outputs."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The only line that begins with `error: `, without that."""
        (line,) = [each for each in self.err.splitlines() if each.startswith("error: ")]
        return line.removeprefix("error: ")

    def report(self) -> str:
        """Return the output of a command that succeeded."""
        assert self.code == 0, self.err
        return self.out

    def refusal(self) -> str:
        """Return the error of a command that was refused by this one line alone."""
        assert (self.code, self.out) == (2, "")
        assert self.err == f"error: {self.error}\n"
        return self.error


Call = Callable[..., Ended]


def changed(command: Sequence[str], *settings: str) -> list[str]:
    """Return a command with other values of settings, which it may have already."""
    names = tuple(f"{each.partition('=')[0]}=" for each in settings)
    return [*(each for each in command if not each.startswith(names)), *settings]


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run the command line program in `folder`, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trainers.run", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        return run.main()
    except SystemExit as end:
        return int(end.code or 0)


@contextmanager
def environments_built_once(*given: Environment) -> Iterator[None]:
    """Let all commands of the block share environments: equal settings build one of them.

    Args:
        given: environments that can switch their mode; each serves in all commands that train or
            evaluate in its class, in place of a new one.
    """
    built: dict[str, EnvBase] = {}
    build = Component.build

    def build_once(component: Component, *arguments: Any, **provided: Any) -> Any:
        if not issubclass(component.target, EnvBase):
            return build(component, *arguments, **provided)
        mode = provided["mode"]
        known = [env for env in given if type(env) is component.target and mode != "demo"]
        for env in known:
            env.set_mode(mode)
            return _kept_open(env)
        key = f"{component} {mode} {provided['device']}"
        if key not in built:
            built[key] = build(component, *arguments, **provided)
        return _kept_open(built[key])

    try:
        with mock.patch.object(Component, "build", build_once):
            yield
    finally:
        for env in (*given, *built.values()):
            env.__dict__.pop("close", None)
        for env in built.values():
            env.close(raise_if_closed=False)


def _kept_open(env: EnvBase) -> EnvBase:
    """Return an environment that the program cannot close."""
    env.is_closed = False  # closing a transform of it marks it as closed
    env.__dict__["close"] = lambda **_: None
    return env
