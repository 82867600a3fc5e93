"""Graphs: the work of a function on a device, recorded once and replayed without the host."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

Result = TypeVar("Result")

# Eager calls before the capture: optimizers create their state, libraries choose kernels and
# reserve memory, and compilers generate code, none of which a graph can hold.
EAGER_CALLS = 3


class CapturedFunction(Generic[Result]):
    """A function of a TensorDict that runs eagerly at first, then as a graph.

    After `EAGER_CALLS` calls the work of the function on the device is captured. All later calls
    copy their argument to the memory of the graph and replay it: no Python code of the function
    runs, so it depends on tensors alone, whose shapes are those of the first call, and reads no
    value back to the host. Random numbers go on from call to call as in eager execution. A copy
    has no graph yet, and begins with eager calls. The name and the setting that turns captures off
    stand in errors.
    """

    def __init__(
        self,
        function: Callable[[TensorDictBase], Result],
        name: str,
        device: torch.device,
        setting: str = "graphs",
    ) -> None:
        self._function = function
        self._name = name
        self._device = device
        self._setting = setting
        self._module = accelerator_of(device).module
        # All work is done in one stream beside the current one: autograd remembers the stream of a
        # parameter's first gradient, and a capture may not depend on the default stream.
        self._stream = self._module.Stream(device=device)
        self._eager_calls = 0
        self._replay: Callable[[], Any] | None = None
        self._keys: list[NestedKey] = []
        self._inputs: list[Tensor] = []
        self._result: Result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._function, self._name, self._device, self._setting)

    @property
    def is_captured(self) -> bool:
        """Whether the next call only replays."""
        return self._replay is not None

    def __call__(self, inputs: TensorDictBase) -> Result:
        """Do the work of the function; the next call overwrites the tensors of its result.

        Raises:
            ConfigurationError: the function cannot be captured, for instance because it reads a
                value back to the host.
        """
        if self._replay is None and self._eager_calls < EAGER_CALLS:
            self._eager_calls += 1
            current = self._module.current_stream(self._device)
            self._stream.wait_stream(current)
            with self._module.stream(self._stream):
                result = self._function(inputs)
            current.wait_stream(self._stream)
            return result
        if self._replay is None:
            self._replay = self._capture(inputs)
        elif self._inputs:
            torch._foreach_copy_(self._inputs, [inputs.get(key) for key in self._keys])
        self._replay()
        return self._result

    def _capture(self, inputs: TensorDictBase) -> Callable[[], Any]:
        """Record the function on a copy of its argument, and return the replay."""
        own = inputs.clone()
        self._keys = list(own.keys(include_nested=True, leaves_only=True))
        self._inputs = [own.get(key) for key in self._keys]
        graph = getattr(self._module, f"{self._device.type.upper()}Graph")()
        try:
            with self._module.graph(graph, stream=self._stream):
                self._result = self._function(own)  # its tensors have no values before a replay
        except RuntimeError as error:
            # An error of the function makes the end of the capture fail as well.
            cause = error.__context__ or error
            reason = str(cause).strip().partition("\n")[0]
            raise ConfigurationError(
                f"{self._setting}: {self._name} cannot be captured ({reason}); "
                f"use {self._setting}=off"
            ) from error
        return graph.replay
