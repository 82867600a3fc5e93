"""The program in separate processes, which start soon."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.forks import forked
from trainers.run import main

PATIENCE = 120.0  # seconds, on a machine that is busy with other programs too


class Program:
    """The program in a separate process and session, with its output in a file."""

    def __init__(self, process: Any, output: Path) -> None:
        self.process = process
        self.folder = output.parent
        self._output = output

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, reason: str, holds: Callable[[], object]) -> None:
        for _ in range(9_000):
            if holds():
                return
            assert self.process.is_alive(), f"{self.process.exitcode} {self.output}"
            time.sleep(0.01)
        raise AssertionError(f"{reason}: {self.output}")

    def wait_for_training(self) -> None:
        self.wait_for("no row", lambda: list(self.folder.glob("runs/**/metrics.csv")))

    def end(self, seconds: float = PATIENCE) -> int | None:
        """Wait for the end of the program, and then for that of its workers."""
        self.process.join(seconds)
        assert not self.process.is_alive(), f"still runs: {self.output}"
        _, alive = psutil.wait_procs(session(self.pid), timeout=PATIENCE)
        assert not alive, [(each.status(), each.cmdline()) for each in alive]
        assert "Traceback" not in self.output, self.output
        assert "ignored" not in self.output
        return self.process.exitcode


Start = Callable[..., Program]


def session(leader: int) -> list[psutil.Process]:
    """Return the processes of a session."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                members.append(process)
    return members


@contextmanager
def programs(folder: Path) -> Iterator[Start]:
    """Provide a function that starts programs in `folder`; those still running are killed."""
    started: list[Program] = []

    def begin(
        *arguments: str,
        program: Callable[[], object] = main,
        ignores_ctrl_c: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> Program:
        """Start the program with arguments, or another function, in a separate session."""

        def begun() -> None:
            os.setsid()
            os.chdir(folder)
            os.environ.update(variables or {})
            sys.stdout = sys.stderr = output.open("w", buffering=1)
            for number in (1, 2):
                os.dup2(sys.stdout.fileno(), number)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests ignore it
            if ignores_ctrl_c:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.argv = ["trainers.run", *arguments]
            sys.exit(program())  # type: ignore[arg-type]

        output = folder / f"output_{len(started)}"
        output.touch()
        process = forked(begun)
        process.start()
        started.append(Program(process, output))
        return started[-1]

    try:
        yield begin
    finally:
        for each in started:
            if each.process.is_alive():
                for process in session(each.pid):
                    process.kill()
            each.process.join()
