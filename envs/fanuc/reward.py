"""Rewards of the arms, and conditions that end their episodes.

The code takes numpy arrays or tensors: see `BulletArms`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# reward = PROGRESS_REWARD * (metres gained towards the target) - STEP_COST
#          + SUCCESS_REWARD if the goal is reached - ACTION_COST * mean(action^2)
#          - HOLD_COST * unrest, where success demands rest
PROGRESS_REWARD = 5.0
STEP_COST = 0.05
SUCCESS_REWARD = 5.0
ACTION_COST = 0.01
HOLD_COST = 0.25


@dataclass(frozen=True)
class Goal:
    """Conditions of success."""

    radius: float  # maximum distance from tool to target, metres
    hold_steps: int = 1  # consecutive steps within radius and speed that are a success, at least 1
    hold_speed: float = math.inf  # maximum speed of the tool in these steps, m/s


class Judgement(NamedTuple):
    """Reward and done flags of a step, each `[N, 1]`, as numpy arrays or tensors."""

    reward: Any  # float32
    success: Any  # whether the goal is reached, which terminates the episode, bool
    truncated: Any  # whether the episode ends without success, bool
    done: Any  # whether the episode ends, bool
    held: Any  # number of last steps that were near and slow as the goal demands, int64
    interrupted: bool  # whether the step of some arms could not be simulated
    terms: Mapping[str, Any]  # of the reward by name, as the rewards or one number for all arms


def effort_of(action: Any) -> Any:
    """Return the mean squared actions `[N, 1]` of actions `[N, joints]`, clipped to -1 to 1."""
    action = action.clip(-1.0, 1.0)
    return (action * action).mean(1, keepdims=True)


def judge(
    goal: Goal,
    held: Any,
    before: Any,
    after: Any,
    observation: Any,
    calm: Any | None,
    effort: Any,
    time_is_up: Any,
    lost: Sequence[slice] = (),
) -> Judgement:
    """Return the rewards and done flags of one step.

    Args:
        goal: conditions of success.
        held: `Judgement.held` of the step before.
        before: distances to the targets before the step, float32 `[N, 1]`, metres.
        after: distances to the targets after the step, float32 `[N, 1]`, metres.
        observation: observations after the step `[N, D]`, see `ArmEncoder`.
        calm: see `Arms._calm`, float32 `[N, 1]`.
        effort: mean squared actions, float32 `[N, 1]`, 0 to 1, see `effort_of`.
        time_is_up: whether the episode has reached its time limit, bool `[N, 1]`.
        lost: arms whose step could not be simulated; they are truncated with reward 0.

    Returns:
        Numpy arrays or tensors like the arguments; numpy computes the reward in float64.
    """
    holds, unrest = after < goal.radius, 0.0
    if calm is not None:
        holds = holds & (calm > 0.5)
        nearness = observation[:, -2:-1]  # exp(-distance / 0.05 m)
        unrest = 1 - nearness * (1 + calm) / 2
    held = (held + 1) * holds
    success = held >= goal.hold_steps
    truncated = time_is_up & ~success
    terms = {
        "progress": PROGRESS_REWARD * (before - after),
        "step": -STEP_COST,
        "success": SUCCESS_REWARD * success,
        "unrest": -HOLD_COST * unrest,
        "effort": -ACTION_COST * effort,
    }
    reward = sum(terms.values())
    for arms in lost:
        reward[arms], success[arms], truncated[arms] = 0, False, True
    return Judgement(reward, success, truncated, success | truncated, held, bool(lost), terms)
