"""Operations of a computation, and which of them DirectML would run on the CPU.

The record needs neither DirectML nor its hardware: `operations.json` lists how every operation of
torch 2.4.1 reaches a device of torch-directml, and a computation on the CPU is held against it.
"""

import functools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C import DispatchKey, _dispatch_has_kernel_for_dispatch_key
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_TABLE = Path(__file__).with_name("operations.json")

# Kernels that torch takes for a device without a kernel of its own, in torch's order. They are made
# of other operations, which torch dispatches anew.
_COMPOSITES = (
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeImplicitAutograd,
)

# Composites that choose their parts by the device. The parts for DirectML, by composite:
_PARTS_BY_DEVICE = {
    "aten::convolution": "aten::convolution_overrideable",
    "aten::convolution_backward": "aten::convolution_backward_overrideable",
}

# Composites that read the storage of a tensor. Tensors on a DirectML device have none.
_READS_STORAGE = {"aten::view.dtype"}

# Makes a new tensor object for the same memory, without a kernel. Its composite cannot run under a
# mode, which it would call again.
_DETACH = "aten::detach"


class RecordedOperations(TorchDispatchMode):
    """Records the operations of the computations in its block, as DirectML would run them.

    An operation that DirectML registers is recorded by its name. Any other operation that torch
    makes of further operations counts as these: torch's own composite kernel runs, and the mode
    records its parts, as `add.out` for `add.Tensor` and for `add_.Tensor`. The remaining operations
    reach torch-directml's fallback and count as round trips.

    Attributes:
        native: number of calls of each operation with a kernel of DirectML.
        round_trips: number of calls of each operation that copies its tensors to the CPU and back,
            operations that the table does not know and those that fail there included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.native: Counter[str] = Counter()
        self.round_trips: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        operation: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record one operation and run it."""
        kwargs = kwargs or {}
        name = operation.name()
        listed = _PARTS_BY_DEVICE.get(name, name)
        native, fallback = kernels()
        if listed == _DETACH:
            return operation(*args, **kwargs)
        if listed in native:
            self.native[listed] += 1
            return operation(*args, **kwargs)
        if listed not in fallback | _READS_STORAGE:
            for key in _COMPOSITES:
                if _dispatch_has_kernel_for_dispatch_key(name, key):
                    tensors = _with_tensors(operation, args)
                    with self:
                        return operation._op_dk(key, *tensors, **kwargs)
        self.round_trips[listed] += 1
        return operation(*args, **kwargs)


def _with_tensors(operation: OpOverload, args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with tensors in place of numbers where the operation takes tensors.

    A mode receives the number of `tensor % 3` as a number, which composite kernels do not accept.
    """
    return [
        torch.tensor(given)
        if isinstance(given, int | float) and isinstance(declared.type, torch.TensorType)
        else given
        for given, declared in zip(args, operation._schema.arguments, strict=False)
    ]


@functools.cache
def kernels() -> tuple[frozenset[str], frozenset[str]]:
    """Return the operations with a kernel of DirectML, and those that it runs on the CPU."""
    table = json.loads(_TABLE.read_text())
    return frozenset(table["native"]), frozenset(table["cpu_fallback"])
