"""Several processes of a run, started as such: their tensors travel by gloo."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.helpers.forks import fork_server
from torchrl_gpu.distributed import joined
from torchrl_gpu.processes import Processes

_SECONDS = 240.0  # that the processes may take; less than the patience of `joined`


@contextmanager
def held_port() -> Iterator[int]:
    """Provide a port on which rank 0 can listen; on Linux no other program gets it in the block."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":  # elsewhere nobody can listen on a port that is bound
            holder.close()
        yield port


def on_gloo_ranks(count: int, work: Callable[[Processes], object], folder: Path) -> list[Any]:
    """Do work, a function of a module, in several processes, and return their results by rank.

    A result is an object that `torch.save` can write, or the exit code of a process without one.
    """
    context = fork_server()
    paths = [folder / f"rank_{rank}.pt" for rank in range(count)]
    with held_port() as port, ThreadPoolExecutor(count) as threads:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = [
            context.Process(target=_work, args=(rank, count, place, work, path), daemon=True)
            for rank, path in enumerate(paths)
        ]
        for process in processes:
            process.start()
        list(threads.map(lambda process: process.join(_SECONDS), processes))
    running = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in running:
        processes[rank].kill()
    if running:
        raise TimeoutError(f"ranks {running} did not end within {_SECONDS} s")
    results = zip(processes, paths, strict=True)
    return [torch.load(path) if path.exists() else process.exitcode for process, path in results]


def _work(
    rank: int, count: int, place: dict[str, str], work: Callable[[Processes], object], path: Path
) -> None:
    torch.set_num_threads(1)
    os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(count))
    with joined() as processes:
        torch.save(work(processes), path)
