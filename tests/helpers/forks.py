"""Processes that start soon: forked from a server that has imported the program.

The server has no threads. A fork of the process of the tests would copy the locks that threads of
Genesis or Ray hold in it, and could wait for one of them forever.
"""

import multiprocessing
import multiprocessing.forkserver
from collections.abc import Callable
from typing import Any

import cloudpickle

_IMPORTED = [
    *("trainers.run", "trainers.training.trainer", "trainers.evaluation.film"),
    *("torchrl_gpu.distributed", "torch.utils.tensorboard", "gymnasium.wrappers"),
    *("envs.fanuc.env", "envs.gym.env", "tests.helpers.agents", "tests.helpers.environments"),
]
CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()


def fork_server() -> Any:
    """Return the context of `multiprocessing` whose processes are forked from the server.

    The server runs then: all its forks have the signal mask of the thread that starts it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    multiprocessing.forkserver.ensure_running()
    return context


def forked(work: Callable[[], object]) -> Any:
    """Return a process that has not started yet.

    Args:
        work: function without arguments, which may be defined in another function.
    """
    return fork_server().Process(target=_call, args=(cloudpickle.dumps(work),))


def _call(work: bytes) -> None:
    cloudpickle.loads(work)()
