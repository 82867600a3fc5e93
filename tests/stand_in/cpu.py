"""Counter of host reads for simulators that run on the CPU alone where the tests run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.stand_in.tensor import reads_host
from tests.stand_in.traffic import HostTraffic, count_host_reads, record

_MAKERS = (torch.tensor, torch.as_tensor)


@contextmanager
def count_reads_of_cpu_tensors() -> Iterator[HostTraffic]:
    """Count host reads as though all tensors of the CPU were on an accelerator.

    Tensors made of Python's numbers on a given device count as copies to it. Other copies between
    devices and the reads of compiled code are invisible.
    """
    with count_host_reads() as traffic, _Functions(), _Operations():
        yield traffic


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        operation: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = operation._schema.name.removeprefix("aten::")
        if reads_host(name, args, kwargs):
            record("read", name)
        return operation(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Sees calls that are not operations for a tensor of the CPU."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.cpu:
            record("copy to host", "cpu")
        elif function is Tensor.tolist:
            record("read", "tolist")
        elif function in _MAKERS and kwargs.get("device") and not isinstance(args[0], Tensor):
            record("copy to device", function.__name__)
        return function(*args, **kwargs)
