"""Curriculum from near to far targets, driven by the success rate."""

from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.processes import ONE_PROCESS, Processes

WINDOW = 200
PASS_RATE = 0.7


class Curriculum:
    """Unlocks the next grade of targets when the success rate is high enough.

    Training draws targets from all grades up to the level. The level rises when more than
    `PASS_RATE` of the last `WINDOW` episodes succeeded; the window is then emptied.

    Args:
        ceiling: maximum level, an index into the grades.
        level: initial level, 0 to `ceiling`; as an attribute, the current one, int64 `[]`.
        device: device of the levels.
    """

    # Processes whose episodes count; they record each step together, and so have the same level.
    processes: Processes = ONE_PROCESS

    def __init__(self, ceiling: int, level: int = 0, device: torch.device | str = "cpu") -> None:
        self.ceiling = ceiling
        self.level = torch.tensor(min(level, ceiling), device=device)
        # The last element is a slot for outcomes that are not recorded.
        self._outcomes = torch.zeros(WINDOW + 1, dtype=torch.bool, device=device)
        self._recorded = torch.zeros_like(self.level)  # number of episodes since the last rise
        self._reads_stall = accelerator_of(self.level.device).reads_stall

    def record(self, success: Tensor, done: Tensor) -> None:
        """Count the episodes that ended in the last step, bool `[N, 1]`, on the device.

        Where reading the level is free, none is counted at the highest one.
        """
        if not self._reads_stall:
            if int(self.level) >= self.ceiling:
                return  # no episode can change the level
            if self.processes.count == 1 and not done.any():
                return
        ended, outcome = self.processes.gather(torch.cat((done, success), 1)).unbind(1)
        number = ended.cumsum(0)
        total = number[-1]
        kept = ended & (number > total - WINDOW)
        slot = torch.where(kept, (self._recorded + number - 1) % WINDOW, WINDOW)
        self._outcomes = self._outcomes.scatter(0, slot, outcome)
        recorded = self._recorded + total
        passed = self._outcomes[:WINDOW].sum() > PASS_RATE * WINDOW
        rises = passed & (recorded >= WINDOW) & (self.level < self.ceiling)
        self.level = self.level + rises
        self._recorded = torch.where(rises, 0, recorded)

    def state_dict(self) -> dict[str, Any]:
        """Return the level and the recent outcomes."""
        return {"level": self.level, "outcomes": self._outcomes, "recorded": self._recorded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()`, with the level limited to the ceiling."""
        check_like(state, self.state_dict(), "the saved curriculum")
        self.level = state["level"].to(self.level).clamp(max=self.ceiling)
        self._outcomes = state["outcomes"].to(self._outcomes)
        self._recorded = state["recorded"].to(self._recorded)
