"""Curriculum from near to far targets, driven by the success rate."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

WINDOW = 200
PASS_RATE = 0.7


class Curriculum:
    """Unlocks the next grade of targets when the success rate is high enough.

    Training draws targets from all grades up to the level. The level rises when more than
    `PASS_RATE` of the last `WINDOW` episodes succeeded; the window is then emptied.

    Args:
        ceiling: maximum level, an index into the grades.
        level: initial level, 0 to `ceiling`.
    """

    def __init__(self, ceiling: int, level: int = 0) -> None:
        self.ceiling = ceiling
        self.level = min(level, ceiling)
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)

    def record(self, success: Tensor, done: Tensor) -> None:
        """Count the episodes that ended in the last step; below the ceiling, in one transfer.

        Args:
            success: whether an arm has reached its target, bool `[N, 1]`.
            done: whether the episode of an arm has ended, bool `[N, 1]`.
        """
        if self.level == self.ceiling:
            return
        successes, ends = torch.stack((success, done)).cpu().numpy()
        if not ends.any():
            return
        self._outcomes.extend(successes[ends].tolist())
        if len(self._outcomes) == WINDOW and sum(self._outcomes) > PASS_RATE * WINDOW:
            self.level += 1
            self._outcomes.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the level and the recent outcomes as plain values."""
        return {"level": self.level, "outcomes": list(self._outcomes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()`, with the level limited to the ceiling."""
        self.level = min(int(state["level"]), self.ceiling)
        self._outcomes = deque(state["outcomes"], maxlen=WINDOW)
