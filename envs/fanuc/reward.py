"""Rewards of the arms, and conditions that end their episodes.

The code uses numpy, which takes less than half the time of torch on so few values per arm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# reward = PROGRESS_REWARD * (metres gained towards the target) - STEP_COST
#          + SUCCESS_REWARD if the target is reached - ACTION_COST * mean(action^2)
PROGRESS_REWARD = 5.0
STEP_COST = 0.05
SUCCESS_REWARD = 5.0
ACTION_COST = 0.01


class Outcome(NamedTuple):
    """Reward and done flags of a step, each `[N, 1]`.

    Attributes:
        reward: reward, float32.
        success: whether the flange is at the target, which terminates the episode, bool.
        truncated: whether the episode ends without success, bool.
        done: whether the episode ends, bool.
    """

    reward: NDArray[np.float32]
    success: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]


def judge(
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    action: NDArray[np.float32],
    time_is_up: NDArray[np.bool_],
    lost: list[slice],
    success_radius: float,
) -> Outcome:
    """Return the rewards and done flags of one step.

    Args:
        before: distances to the targets before the step, `[N, 1]`, metres.
        after: distances to the targets after the step, `[N, 1]`, metres.
        action: actions, `[N, 6]`, -1 to 1.
        time_is_up: whether the episode has reached its time limit, bool `[N, 1]`.
        lost: arms whose step could not be simulated; they are truncated with reward 0.
        success_radius: maximum distance that counts as success, metres.
    """
    success = after < success_radius
    truncated = time_is_up & ~success
    reward = (
        PROGRESS_REWARD * (before - after)
        - STEP_COST
        + SUCCESS_REWARD * success
        - ACTION_COST * np.square(action).mean(1, keepdims=True)
    ).astype(np.float32, copy=False)
    for arms in lost:
        reward[arms], success[arms], truncated[arms] = 0, False, True
    return Outcome(reward, success, truncated, success | truncated)
