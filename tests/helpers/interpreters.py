"""An interpreter for the commands of scripts and schedulers, whose programs start soon."""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.forks import forked

# Passes on its arguments, folder, variables and outputs, then its signals, and ends as the program.
_CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
arguments = [each for each in sys.argv[1:] if each != "-u"]
if arguments[0] != "-m" or arguments[1] not in {served}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"-"], [1, 2])
told = json.dumps([arguments[1:], os.getcwd(), dict(os.environ)])
server.sendall(told.encode() + b"\\n")
answers = server.makefile()
program = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: os.kill(program, number))
code = int(answers.readline())
if code < 0:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(code)
"""
_SERVED = ("trainers.run", "submitit.core._submit")


@contextmanager
def quick_interpreter(folder: Path) -> Iterator[Path]:
    """Provide an executable, `python`, that runs modules of the program in forks of a server.

    The server has imported the program. The interpreter of the tests runs everything else.
    """
    client = folder / "python"
    with TemporaryDirectory() as short:  # the system limits the path of a socket to 104 characters
        address = Path(short) / "socket"
        code = _CLIENT.format(python=sys.executable, served=_SERVED, address=str(address))
        client.write_text(code)
        client.chmod(0o755)
        server = forked(lambda: _serve(address))
        server.start()
        try:
            while not address.exists():
                assert server.is_alive()
                time.sleep(0.01)
            yield client
        finally:
            server.kill()
            server.join()


def _serve(address: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address.with_suffix(".new")))
        listener.listen()
        address.with_suffix(".new").rename(address)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(connection)
                os._exit(0)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """Run the program of a client, and tell it the number of the process and the exit code."""
    _, outputs, *_ = socket.recv_fds(connection, 1, 2)
    told = json.loads(connection.makefile().readline())
    program = multiprocessing.get_context("fork").Process(target=_run, args=(*told, outputs))
    program.start()
    for output in outputs:
        os.close(output)
    connection.sendall(f"{program.pid}\n".encode())
    program.join()
    connection.sendall(f"{program.exitcode}\n".encode())


def _run(arguments: list[str], folder: str, variables: dict[str, str], outputs: list[int]) -> None:
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = [folder, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = arguments
    sys.modules.pop(arguments[0], None)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
