"""Generalized advantage estimation on the device, in a logarithmic number of steps.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", arXiv 1506.02438.
"""

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

    A terminated episode has no future value. The future value of a truncated episode is that of its
    last observation. In neither case do rewards after the reset count.

    Args:
        reward: rewards `[T, *B]`.
        value: value of the observation before each step, `[T, *B]`.
        next_value: value of the true observation after each step, before any reset, `[T, *B]`.
        terminated: whether the task ended with the step, bool `[T, *B]`.
        truncated: whether a time limit ended the episode with the step, bool `[T, *B]`.
        gamma: discount factor per step, 0 to 1.
        gae_lambda: lambda, 0 to 1; 0 for one-step advantages, 1 for all remaining rewards of the
            rollout.
    """
    # delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    # A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}                             (eq. 16)
    decay = torch.full_like(delta, gamma * gae_lambda)
    return linear_recurrence(delta, decay.masked_fill(terminated | truncated, 0.0))


def linear_recurrence(increment: Tensor, coefficient: Tensor) -> Tensor:
    """Return y_t = increment_t + coefficient_t y_{t+1} with y_T = 0, for all t at once.

    Each pass doubles the number of terms that every y_t sums (Hillis and Steele, "Data Parallel
    Algorithms", 1986), so T time steps take log2(T) passes over the data. Increments, coefficients
    and y are `[T, *B]`.
    """
    reach, steps = 1, increment.shape[0]
    while reach < steps:
        near, far = slice(None, -reach), slice(reach, None)
        # y_t + c_t y_{t+reach};  terms beyond the end are 0
        summed = torch.addcmul(increment[near], coefficient[near], increment[far])
        increment = torch.cat([summed, increment[-reach:]])
        coefficient = torch.cat([coefficient[near] * coefficient[far], coefficient[-reach:]])
        reach *= 2
    return increment
