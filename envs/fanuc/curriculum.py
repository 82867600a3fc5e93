"""From near targets to far ones, as fast as the policy learns."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 200
PASS_RATE = 0.7


class Curriculum:
    """Opens the next grade of targets when those opened so far are reached often enough.

    Training draws from all grades up to the level; the level goes up when more than `PASS_RATE`
    of the last `WINDOW` episodes succeeded, and the counting starts anew.

    Args:
        ceiling: the highest level, an index into the grades.
        level: the level to begin with.
    """

    def __init__(self, ceiling: int, level: int = 0) -> None:
        self.ceiling = ceiling
        self.level = min(level, ceiling)
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)

    def record(self, success: NDArray[np.bool_], done: NDArray[np.bool_]) -> None:
        """Take note of the episodes that have just ended.

        Args:
            success: whether an arm has reached its target, bool `[N, 1]`.
            done: whether its episode has ended, bool `[N, 1]`.
        """
        if self.level == self.ceiling or not done.any():
            return
        self._outcomes.extend(success[done].tolist())
        if len(self._outcomes) == WINDOW and sum(self._outcomes) > PASS_RATE * WINDOW:
            self.level += 1
            self._outcomes.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return level and recent outcomes as plain values."""
        return {"level": self.level, "outcomes": list(self._outcomes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; a level above the present ceiling is lowered to it."""
        self.level = min(int(state["level"]), self.ceiling)
        self._outcomes = deque(state["outcomes"], maxlen=WINDOW)
