"""Rewards of the arms, and conditions that end their episodes.

The code takes numpy arrays or tensors: see `BulletArms`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

# reward = PROGRESS_REWARD * (metres gained towards the target) - STEP_COST
#          + SUCCESS_REWARD if the target is reached - ACTION_COST * mean(action^2)
PROGRESS_REWARD = 5.0
STEP_COST = 0.05
SUCCESS_REWARD = 5.0
ACTION_COST = 0.01


class Judgement(NamedTuple):
    """Reward and done flags of a step, each `[N, 1]`, as numpy arrays or tensors.

    Attributes:
        reward: reward, float32.
        success: whether the flange is at the target, which terminates the episode, bool.
        truncated: whether the episode ends without success, bool.
        done: whether the episode ends, bool.
        interrupted: whether the step of some arms could not be simulated.
    """

    reward: Any
    success: Any
    truncated: Any
    done: Any
    interrupted: bool


def effort_of(action: Any) -> Any:
    """Return the mean squared actions `[N, 1]` of actions `[N, 6]`, arrays or tensors."""
    return (action * action).mean(1, keepdims=True)


def judge(
    before: Any,
    after: Any,
    effort: Any,
    time_is_up: Any,
    success_radius: float,
    lost: Sequence[slice] = (),
) -> Judgement:
    """Return the rewards and done flags of one step.

    Args:
        before: distances to the targets before the step, float32 `[N, 1]`, metres.
        after: distances to the targets after the step, float32 `[N, 1]`, metres.
        effort: mean squared actions, float32 `[N, 1]`, 0 to 1, see `effort_of`.
        time_is_up: whether the episode has reached its time limit, bool `[N, 1]`.
        success_radius: maximum distance that counts as success, metres.
        lost: arms whose step could not be simulated; they are truncated with reward 0.

    Returns:
        Numpy arrays or tensors like the arguments; numpy computes the reward in float64.
    """
    success = after < success_radius
    truncated = time_is_up & ~success
    reward = (
        PROGRESS_REWARD * (before - after)
        - STEP_COST
        + SUCCESS_REWARD * success
        - ACTION_COST * effort
    )
    for arms in lost:
        reward[arms], success[arms], truncated[arms] = 0, False, True
    return Judgement(reward, success, truncated, success | truncated, bool(lost))
