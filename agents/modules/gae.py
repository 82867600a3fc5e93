"""Generalised advantage estimation on the device, in a logarithmic number of steps.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", arXiv 1506.02438.
"""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return the advantages `[T, *B]` of the actions of a rollout, time first.

    An episode that terminated has no future. One that ran into a time limit has: the value of its
    last observation. In neither case does what came after the reset count.

    Args:
        reward: `[T, *B]`.
        value: of the observation before the step, `[T, *B]`.
        next_value: of the true observation after the step, before any reset, `[T, *B]`.
        terminated: the task ended with this step, bool `[T, *B]`.
        truncated: the time ran out with this step, bool `[T, *B]`.
        gamma: discount per step, 0 to 1.
        gae_lambda: 0 for one-step advantages, 1 for the whole rest of the rollout.
    """
    # delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    # A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}                             (eq. 16)
    decay = torch.full_like(delta, gamma * gae_lambda)
    return linear_recurrence(delta, decay.masked_fill(terminated | truncated, 0.0))


def linear_recurrence(increment: Tensor, coefficient: Tensor) -> Tensor:
    """Solve y_t = increment_t + coefficient_t y_{t+1} with y_T = 0, for all t at once.

    Each pass makes every y_t reach twice as far ahead (Hillis and Steele, "Data Parallel
    Algorithms", 1986), so that T steps of time take log2(T) passes over the data.

    Args:
        increment: `[T, *B]`.
        coefficient: `[T, *B]`.

    Returns:
        y, `[T, *B]`.
    """
    reach, steps = 1, increment.shape[0]
    while reach < steps:
        near, far = slice(None, -reach), slice(reach, None)
        # y_t + c_t y_{t+reach};  what lies beyond the end counts nothing
        increment = torch.cat(
            [
                torch.addcmul(increment[near], coefficient[near], increment[far]),
                increment[-reach:],
            ]
        )
        coefficient = torch.cat([coefficient[near] * coefficient[far], coefficient[-reach:]])
        reach *= 2
    return increment
