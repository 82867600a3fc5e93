"""Processes that start soon: forked from a server that has imported the program.

The server has no threads. A fork of the process of the tests would copy the locks that threads of
Genesis or Ray hold in it, and could wait for one of them forever.
"""

import multiprocessing
import multiprocessing.forkserver
from collections.abc import Callable
from typing import Any

import cloudpickle

CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()


def fork_server() -> Any:
    """Return the context of `multiprocessing` whose processes are forked from the server.

    The server runs then: all its forks have the signal mask of the thread that starts it. Where the
    system cannot fork, the processes start anew.
    """
    if not CAN_FORK:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.preloaded"])
    multiprocessing.forkserver.ensure_running()
    return context


def forked(work: Callable[[], object]) -> Any:
    """Return a process that has not started; its work may be defined in another function."""
    return fork_server().Process(target=_call, args=(cloudpickle.dumps(work),))


def result_of(work: Callable[[], object]) -> Any:
    """Do work in a separate process, and return the result."""
    context = fork_server()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, cloudpickle.dumps(work)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise AssertionError("the process has ended without a result") from None
    finally:
        process.join()


def _call(work: bytes) -> object:
    return cloudpickle.loads(work)()


def _send(sender: Any, work: bytes) -> None:
    sender.send(_call(work))
