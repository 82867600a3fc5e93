"""Processes that share their values by `torch.distributed`, on one machine or on several."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError, ProcessLostError, one_line
from torchrl_gpu.place import num_restarts
from torchrl_gpu.processes import PATIENCE, Processes
from torchrl_gpu.signals import stop_signals_held

Result = TypeVar("Result")

Group: TypeAlias = Any  # `dist.ProcessGroup`, which a torch without distributed lacks

_OF_HOSTS: Final = "gloo"


def backend_of(device: torch.device) -> str:
    """Return the backend by which devices of a kind exchange tensors.

    Raises:
        ConfigurationError: torch has none for the kind, or this build of torch lacks it.
    """
    accelerator = accelerator_of(device)
    if (name := accelerator.communication) is None:
        raise ConfigurationError(
            f"device={accelerator.choice}: torch has no communication between devices of this "
            "kind; use one device, or device=cpu"
        )
    if not (dist.is_available() and dist.is_backend_available(name)):
        raise ConfigurationError(
            f"device={accelerator.choice}: this build of torch lacks the backend {name} for "
            "several devices; use one device, or device=cpu"
        )
    return name


class DistributedProcesses(Processes):
    """Processes of a group of `torch.distributed`, see `joined`.

    `hosts` is the group that exchanges tensors on the host. Every method raises `ProcessLostError`
    if another process has ended.
    """

    def __init__(self, hosts: Group) -> None:
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self._hosts = self._devices = hosts

    def compute_on(self, device: torch.device) -> None:
        """Exchange tensors on the devices of the processes too, this process those on `device`."""
        if (backend := backend_of(device)) != _OF_HOSTS:
            accelerator_of(device).call("set_device")
            self._devices = _answered(dist.new_group, backend=backend, timeout=PATIENCE)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def minimum(self, tensor: Tensor) -> Tensor:
        """Return the smallest value of each element of a tensor over the processes."""
        return self._reduced(tensor, dist.ReduceOp.MIN)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the process of rank 0."""
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        _answered(dist.broadcast, sent, src=0, group=self._group(tensor))
        return sent

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors `[N, ...]` of all processes, `[count * N, ...]` by rank."""
        sent = tensor.contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.count)]
        _answered(dist.all_gather, parts, sent, group=self._group(tensor))
        return torch.cat(parts)

    def any(self, flag: bool) -> bool:
        """Return whether the flag of any process is true. The device is not waited for."""
        return bool(self._reduced(torch.tensor(flag, dtype=torch.uint8), dist.ReduceOp.MAX))

    def agree(self, value: Any) -> Any:
        """Return the value of the process of rank 0, which can be pickled."""
        values = [value]
        _answered(dist.broadcast_object_list, values, src=0, group=self._hosts)
        return values[0]

    def apart(self, patience: timedelta = PATIENCE) -> DistributedProcesses:
        """Return the same processes for calls in another thread, or with another patience.

        They exchange tensors on the host alone.
        """
        options = {"backend": _OF_HOSTS, "timeout": patience}
        return DistributedProcesses(_answered(_interruptible, dist.new_group, **options))

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        shared = tensor.detach().clone(memory_format=torch.contiguous_format)
        _answered(dist.all_reduce, shared, op=operation, group=self._group(tensor))
        return shared

    def _group(self, tensor: Tensor) -> Group:
        return self._hosts if tensor.is_cpu else self._devices


@contextmanager
def joined() -> Iterator[DistributedProcesses]:
    """Join the processes that torch's launcher has started with this one, within the block.

    Raises:
        ProcessLostError: the processes do not find one another.
    """
    store, number, count = _answered(_interruptible, next, rendezvous("env://", timeout=PATIENCE))
    # A launcher that starts the processes again may keep the addresses of those before.
    store = PrefixStore(f"start_{num_restarts()}", store)
    options = {"store": store, "rank": number, "world_size": count, "timeout": PATIENCE}
    _answered(_interruptible, dist.init_process_group, _OF_HOSTS, **options)
    try:
        yield DistributedProcesses(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def _answered(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Call a function of `torch.distributed`, which fails where another process is lost."""
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        reason = re.sub(r"\[/\S*\] ", "", one_line(error)).partition(". This is typically")[0]
        raise ProcessLostError(
            f"another process of the run has ended or does not answer: {reason}"
        ) from error


def _interruptible(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Call a function in another thread, so that a signal ends the wait for it.

    While torch connects the processes of a group, it calls no handlers of signals, and does not
    notice that another process has ended. After an interruption the thread still waits; the process
    has to leave by `os._exit`, because the end of Python in the middle of that may abort it.
    """
    result: Future[Result] = Future()

    def call() -> None:
        try:
            result.set_result(function(*arguments, **options))
        except BaseException as error:
            result.set_exception(error)

    with stop_signals_held():  # they interrupt the main thread alone
        threading.Thread(target=call, name="connecting", daemon=True).start()
    return result.result()
