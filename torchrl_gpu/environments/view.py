"""Views: environments that wrap another one and have its capabilities."""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from torchrl.envs import EnvBase

from torchrl_gpu.environments.environment import Environment, base_of, name_of
from torchrl_gpu.processes import Processes


def _of_wrapped(name: str) -> Any:
    """Return a method that calls the one of this name of the wrapped environment."""

    def method(self: "EnvironmentView", *arguments: Any, **named: Any) -> Any:
        return getattr(self._inner, name)(*arguments, **named)

    return wraps(getattr(Environment, name))(method)


class EnvironmentView(Environment):
    """Base of wrappers, which have the capabilities of the wrapped environment."""

    def __init__(self, env: EnvBase, batch_size: tuple[int, ...], device: Any) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.env = env
        self.capabilities = self._inner.capabilities
        self.stall_seconds = self._inner.stall_seconds
        self.counters = self._inner.counters

    @property
    def _inner(self) -> Environment:
        """The environment beneath all transforms; the defaults here if it is not an `Environment`.

        An `EnvBase` of TorchRL alone has none of the following methods.
        """
        base, defaults = base_of(self.env), super()
        return base if isinstance(base, Environment) else defaults  # type: ignore[return-value]

    @property
    def _class_name(self) -> str:
        """Name of the class of the wrapped environment."""
        return name_of(self.env)

    plan = _of_wrapped("plan")
    render = _of_wrapped("render")
    scene = _of_wrapped("scene")
    caption = _of_wrapped("caption")
    reward_terms = _of_wrapped("reward_terms")
    measurements = _of_wrapped("measurements")
    page = _of_wrapped("page")
    metrics = _of_wrapped("metrics")
    progress = _of_wrapped("progress")
    load_progress = _of_wrapped("load_progress")
    set_mode = _of_wrapped("set_mode")
    set_seeds = _of_wrapped("set_seeds")
    set_idle = _of_wrapped("set_idle")

    def join(self, processes: Processes) -> None:
        """Let the wrapped environment join the processes."""
        super().join(processes)
        self._inner.join(processes)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state of the wrapped environment."""
        return dict(self.env.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Restore the wrapped environment from `state_dict()`."""
        self.env.load_state_dict(state_dict)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the wrapped environment; repeated calls have no effect."""
        self.env.close(raise_if_closed=False)
        self.is_closed = True

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)
