"""Views: environments that wrap another one and have its capabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.environments.environment import Environment, Mode, base_of, name_of
from torchrl_gpu.environments.scene import Scene
from torchrl_gpu.processes import Processes


class EnvironmentView(Environment):
    """Base of wrappers, which have the capabilities of the wrapped environment.

    Args:
        env: environment to wrap.
        batch_size: batch size of the view.
        device: device of the view.
    """

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

    def render(self, index: Any = 0) -> Tensor:
        """Render the wrapped environment."""
        return self._inner.render(index)

    def scene(self) -> Scene | None:
        """Return the scene of the wrapped environment."""
        return self._inner.scene()

    def caption(self, index: int) -> str:
        """Return the caption of the wrapped environment."""
        return self._inner.caption(index)

    def reward_terms(self, index: int) -> Mapping[str, float]:
        """Return the terms of the reward of the wrapped environment."""
        return self._inner.reward_terms(index)

    def measurements(self, index: int) -> dict[str, float]:
        """Return the measurements of the wrapped environment."""
        return self._inner.measurements(index)

    def page(self, policy: str, about: str) -> str:
        """Return the page of the wrapped environment."""
        return self._inner.page(policy, about)

    def metrics(self) -> Mapping[str, float | Tensor]:
        """Return the metrics of the wrapped environment."""
        return self._inner.metrics()

    def join(self, processes: Processes) -> None:
        """Let the wrapped environment join the processes."""
        super().join(processes)
        self._inner.join(processes)

    def progress(self) -> Mapping[str, Any]:
        """Return the state of a run in the wrapped environment."""
        return self._inner.progress()

    def load_progress(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of a run in the wrapped environment."""
        self._inner.load_progress(state_dict)

    def set_mode(self, mode: Mode) -> None:
        """Switch the mode of the wrapped environment."""
        self._inner.set_mode(mode)

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seed each environment of the wrapped environment."""
        self._inner.set_seeds(seeds)

    def set_idle(self, mask: Tensor) -> None:
        """Leave out environments of the wrapped environment."""
        self._inner.set_idle(mask)

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
