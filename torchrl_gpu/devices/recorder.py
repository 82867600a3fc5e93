"""Capture of the work of a device in a graph, for devices whose module in torch has graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class Recorder:
    """Runs work as a capture requires, and captures it, by the graphs of a module of torch.

    All work is done in one stream beside the current one: autograd remembers the stream of a
    parameter's first gradient, and a capture may not depend on the default stream.

    Args:
        module: torch's module for the device type, such as `torch.cuda`.
        device: device of the work.
    """

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._stream = module.Stream(device=device)

    def run(self, work: Callable[[], Result]) -> Result:
        """Do work that is to be captured later."""
        current = self._module.current_stream(self._device)
        self._stream.wait_stream(current)
        with self._module.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], Result]) -> tuple[Callable[[], Any], Result]:
        """Record work without doing it.

        Returns:
            A function that does the work, and the result of `work`, whose tensors have no values
            before that function is called; each call overwrites them.

        Raises:
            RuntimeError: the work cannot be captured.
        """
        graph = getattr(self._module, f"{self._device.type.upper()}Graph")()
        with self._module.graph(graph, stream=self._stream):
            result = work()
        return graph.replay, result
