"""Workers of Ray that start soon; as a program, the stand-in that Ray starts for each of them.

A fork of a process that has imported the library becomes the worker, and the stand-in lives as long
as it. That process is not the one of the tests, in which Ray holds Python's lock while it waits for
its first workers.
"""

import os
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from unittest import mock

_ADDRESS = "RAY_WORKERS"


@contextmanager
def forked_workers() -> Iterator[None]:
    """Fork the workers of a Ray that is started and left in the block.

    Where that is impossible, Ray starts them as ever, which takes seconds more each.
    """
    forks = import_module("tests.helpers.forks")
    constants = import_module("ray._private.ray_constants")
    if not forks.CAN_FORK or not hasattr(constants, "SETUP_WORKER_FILENAME"):
        yield
        return
    context = forks.fork_server()
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=_serve, args=(sender,), daemon=True)
    server.start()
    with (
        mock.patch.object(constants, "SETUP_WORKER_FILENAME", __file__),
        mock.patch.dict(os.environ, {_ADDRESS: receiver.recv()}),
    ):
        try:
            yield
        finally:
            server.kill()
            server.join()


def _serve(sender: Connection) -> None:
    """Fork a worker for each program that connects."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with Listener(family="AF_UNIX") as listener:
        sender.send(listener.address)
        while True:
            with listener.accept() as connection:
                arguments, variables, folder = connection.recv()
                if os.fork() == 0:
                    _work(arguments, variables, folder)


def _work(arguments: list[str], variables: dict[str, str], folder: str) -> None:
    """Run a worker, and end the process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(variables)
    os.chdir(folder)
    parser = import_module("ray._private.workers.setup_worker").parser
    _, sys.argv = parser.parse_known_args(arguments)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(0)


if __name__ == "__main__":
    with Client(os.environ[_ADDRESS]) as connection:
        connection.send((sys.argv[1:], dict(os.environ), str(Path.cwd())))
        connection.poll(None)
