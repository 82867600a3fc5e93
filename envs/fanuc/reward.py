"""What the arms are rewarded for, and when their episodes end.

In numpy, as the observations are: on a value or two for each arm it costs less than half of torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# reward = PROGRESS_REWARD * (metres nearer to the target) - STEP_COST
#          + SUCCESS_REWARD if the target is reached - ACTION_COST * mean(action^2)
PROGRESS_REWARD = 5.0
STEP_COST = 0.05
SUCCESS_REWARD = 5.0
ACTION_COST = 0.01


class Outcome(NamedTuple):
    """What a step came to, each `[N, 1]`.

    Attributes:
        reward: float32.
        success: the flange is at the target, which terminates the episode; bool.
        truncated: the episode ends without that; bool.
        done: either of them; bool.
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
    """Return reward and end of one step.

    Args:
        before: distances to the targets before it, `[N, 1]`, metres.
        after: distances after it, `[N, 1]`, metres.
        action: `[N, 6]`.
        time_is_up: whether it was the last one that an episode may have, `[N, 1]`.
        lost: arms whose step could not be simulated: truncated, with no reward.
        success_radius: distance within which a target is reached, metres.
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
