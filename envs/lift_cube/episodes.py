"""The state of the episodes beside that of the simulator and of the images."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from envs.lift_cube.scene import Scene
from envs.lift_cube.task import TERMS, Progress, Task
from torchrl_gpu.errors import ConfigurationError

# Tensors that a saved state contains.
_SAVED: Final = ("target", "steps", "last_action", "was_lifted", "term_sums")


class Episodes:
    """Keeps the state of each step, apart from the environment, which is slow to set attributes."""

    def __init__(self, scene: Scene, task: Task) -> None:
        self._task: Task = task
        count, device = len(scene.grip), scene.grip.device
        self.scene = scene  # current positions and speeds
        self.target = torch.zeros(count, 3, device=device)  # of the grip points, m
        self.steps = torch.zeros(count, 1, dtype=torch.int64, device=device)  # of each episode
        self.last_action = torch.zeros(count, 4, device=device)
        self.was_lifted = torch.zeros(count, dtype=torch.bool, device=device)  # `Progress.lifted`
        self.progress: Progress | None = None  # of the last step
        # Sums of `Progress.quantities` since the last metrics, and the number of steps in them.
        self.term_sums = torch.zeros(len(TERMS[task]), count, device=device)
        self.term_count = 0

    def advance(self, action: Tensor, progress: Progress) -> None:
        """Count a step with its actions `[N, 4]`."""
        self.steps += 1
        self.last_action, self.was_lifted = action, progress.lifted
        self.progress = progress
        self.term_sums += progress.quantities
        self.term_count += 1

    def restart(self, chosen: Tensor, scene: Scene) -> None:
        """Start new episodes in chosen environments, bool `[N]`; `scene` is their first one."""
        column = chosen.unsqueeze(-1)
        self.scene = scene
        self.target = torch.where(column, scene.grip, self.target)
        self.last_action.masked_fill_(column, 0.0)
        self.steps.masked_fill_(column, 0)
        self.was_lifted.masked_fill_(chosen, False)

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean `[]` of each term of the reward since the last call, as `reward/TERM`."""
        if not self.term_count:
            return {}
        means = self.term_sums.mean(1) / self.term_count
        self.term_sums, self.term_count = torch.zeros_like(self.term_sums), 0
        factors = TERMS[self._task].items()
        return {f"reward/{n}": factor * x for (n, factor), x in zip(factors, means, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """Return all but the scene."""
        saved = {name: getattr(self, name).clone() for name in _SAVED}
        return {**saved, "term_count": self.term_count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict` of the same task; the scene stays."""
        if len(state["term_sums"]) != len(TERMS[self._task]):
            raise ConfigurationError(f"env.task={self._task}: the saved state is of another task")
        for name in _SAVED:
            setattr(self, name, state[name].to(self.target.device, copy=True))
        self.term_count = state["term_count"]
