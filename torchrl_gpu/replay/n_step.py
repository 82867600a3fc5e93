"""N-step transitions from the steps of a replay buffer."""

import torch
from torch import Tensor


def look_ahead(
    place: Tensor,
    stored: dict[str, Tensor],
    num_envs: int,
    newest_step: Tensor,
    n_step: int,
    gamma: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow transitions for up to `n_step` steps, but not past the end of an episode.

    Args:
        place: places of the first steps `[B]`.
        stored: `slots` [places, 2] and `reward`, `terminated` and `truncated` [places] of all
            steps.
        num_envs: number of environments, the distance between the places of successive steps.
        newest_step: slot of the newest step, `[1]`.
        n_step: maximum number of steps, at least 1.
        gamma: discount factor per environment step, 0 to 1.

    Returns:
        Places of the last steps, discounted sums of rewards, and numbers of steps int64; `[B]`.
    """

    def continues_after(place: Tensor) -> Tensor:
        terminated = stored["terminated"].index_select(0, place)
        return ~(terminated | stored["truncated"].index_select(0, place))

    last = place
    reward = stored["reward"].index_select(0, place)
    steps = torch.ones_like(reward, dtype=torch.int64)
    continues = continues_after(place)
    for step in range(1, n_step):
        following = (last + num_envs) % len(stored["slots"])
        # The next step starts with the same row that this one ends with, unless collection was
        # interrupted. In the ring, the newest step is followed by the oldest ones.
        slot = stored["slots"].index_select(0, following)[:, 0]
        next_slot = stored["slots"].index_select(0, last)[:, 1]
        follows = (slot == next_slot) & (last // num_envs != newest_step)
        continues = continues & follows
        # R = sum_k gamma^k r_k
        ahead = gamma**step * stored["reward"].index_select(0, following)
        reward = reward + torch.where(continues, ahead, 0.0)
        steps = steps + continues
        last = torch.where(continues, following, last)
        continues = continues & continues_after(last)
    return last, reward, steps
