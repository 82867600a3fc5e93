"""Graphs of the stand-in accelerator: the operations of a capture, done again at every replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.stand_in.abilities import DEVICE_TYPE, HARDWARE


@dataclass
class _Operation:
    """An operation with its CPU tensors."""

    function: OpOverload
    args: Any
    kwargs: Any
    results: list[Tensor]


@dataclass
class Graph:
    """The operations of a capture, in order, such as `torch.cuda.CUDAGraph`.

    A capture changes no tensor that exists already and draws no random numbers; its results have
    values only after a replay. Reads and copies of the host are errors within a capture.
    """

    operations: list[_Operation] = field(default_factory=list)
    # Memory that existed before the capture and changed in it, with its values before, by address.
    before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = field(
        default_factory=dict
    )
    created: set[int] = field(default_factory=set)

    def note_writes(self, function: OpOverload, args: Any, kwargs: Any) -> None:
        """Keep the values of existing memory that an operation is about to change."""
        for index, argument in enumerate(function._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for tensor in _tensors(value):
                memory = tensor.untyped_storage()
                address = memory.data_ptr()
                if address not in self.created and address not in self.before:
                    self.before[address] = (memory, memory.clone())

    def add(self, function: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        """Add an operation that has been done."""
        results = _tensors(result)
        used = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        self.created |= {t.untyped_storage().data_ptr() for t in results} - used
        self.operations.append(_Operation(function, args, kwargs, results))

    def undo(self) -> None:
        """Restore the memory that existed before the capture."""
        for memory, values in self.before.values():
            memory.copy_(values)

    def replay(self) -> None:
        """Do all operations again, with the memory of their results."""
        for operation in self.operations:
            with torch.no_grad(), HARDWARE.draws():
                again = operation.function(*operation.args, **operation.kwargs)
            for result, value in zip(operation.results, _tensors(again), strict=True):
                # An operation in place, or one that returns a view, has changed it already.
                if result.data_ptr() != value.data_ptr():
                    result.copy_(value)


class Stream:
    """The only stream, such as `torch.cuda.Stream`, which has no state of its own."""

    def __init__(self, device: object = None) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        """Return at once: all work is done in the order of its calls."""


_captures: list[Graph] = []


def current_capture() -> Graph | None:
    """Return the graph that records operations at present."""
    return _captures[-1] if _captures else None


def refuse_in_capture(operation: str) -> None:
    """Raise if the host may not do an operation because of a capture."""
    if _captures:
        raise RuntimeError(f"operation not permitted when stream is capturing: {operation}")


@contextmanager
def capture(graph: Graph, stream: Stream | None = None) -> Iterator[None]:
    """Record all operations within the block, such as `torch.cuda.graph`.

    Raises:
        RuntimeError: the block has raised an error, which is the context of this one.
    """
    random_state = HARDWARE.random_state
    _captures.append(graph)
    try:
        yield
    except Exception:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    finally:
        _captures.remove(graph)
        graph.undo()
        HARDWARE.random_state = random_state


def functions() -> dict[str, Any]:
    """Return the functions and classes of the device's module in torch."""
    return {
        f"{DEVICE_TYPE.upper()}Graph": Graph,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "graph": capture,
        "is_current_stream_capturing": lambda: bool(_captures),
        "stream": lambda stream: nullcontext(),
    }


def _tensors(values: Any) -> list[Tensor]:
    """Return all tensors of nested values."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    return []
