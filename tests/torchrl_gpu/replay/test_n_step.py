"""N-step transitions, and inactive rows."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

CPU = torch.device("cpu")
GAMMA = 0.5
NUM_ENVS = 2
SPEC = Composite(observation=Unbounded((NUM_ENVS, 1)), shape=(NUM_ENVS,))
ACTION_SPEC = Categorical(3, shape=(NUM_ENVS,))
BUFFERS = [ReplayBuffer, PrioritizedReplayBuffer]


def make(kind: type[ReplayBuffer], n_step: int, capacity: int = 100) -> ReplayBuffer:
    return kind(capacity, SPEC, ACTION_SPEC, CPU, n_step=n_step, gamma=GAMMA)


def action_at(root: torch.Tensor) -> torch.Tensor:
    return root.long().squeeze(1) % 3


def step(
    root: list[float],
    after: list[float],
    reward: list[float],
    terminated: tuple[bool, bool] = (False, False),
    truncated: tuple[bool, bool] = (False, False),
    active: tuple[bool, bool] | None = None,
) -> TensorDict:
    def column(values: object) -> torch.Tensor:
        return torch.tensor(values).unsqueeze(1)

    transition = TensorDict(
        {
            "observation": column(root),
            "action": action_at(column(root)),
            "next": {
                "observation": column(after),
                "reward": column(reward),
                "terminated": column(terminated),
                "truncated": column(truncated),
            },
        },
        [NUM_ENVS],
    )
    if active is not None:
        transition["active"] = column(active)
    return transition


def by_root(replay: ReplayBuffer) -> dict[float, tuple[float, float, bool, bool, int]]:
    """Return next observation, reward, flags and steps of a sample by root observation."""
    torch.manual_seed(0)
    batch = replay.sample(1000)
    assert batch["action"].equal(action_at(batch["observation"]))
    steps = batch.get("steps_to_next_obs", torch.ones(1000, 1, dtype=torch.int64))
    return {
        batch["observation"][i].item(): (
            batch["next", "observation"][i].item(),
            batch["next", "reward"][i].item(),
            batch["next", "terminated"][i].item(),
            batch["next", "truncated"][i].item(),
            steps[i].item(),
        )
        for i in range(1000)
    }


@pytest.mark.parametrize("kind", BUFFERS)
def test_rewards_are_summed_over_n_steps_but_not_past_the_end_of_an_episode(
    kind: type[ReplayBuffer],
) -> None:
    replay = make(kind, n_step=3)
    # Environment 0 terminates in step 2; environment 1 is truncated in step 3.
    replay.extend(step([1.0, 11.0], [2.0, 12.0], [1.0, 10.0]))
    replay.extend(step([2.0, 12.0], [3.0, 13.0], [2.0, 20.0]))
    replay.extend(step([3.0, 13.0], [4.0, 14.0], [4.0, 40.0], terminated=(True, False)))
    replay.extend(step([5.0, 14.0], [6.0, 15.0], [8.0, 80.0], truncated=(False, True)))
    replay.extend(step([6.0, 16.0], [7.0, 17.0], [16.0, 160.0]))
    assert by_root(replay) == {
        1.0: (4.0, 1.0 + 0.5 * 2.0 + 0.25 * 4.0, True, False, 3),
        2.0: (4.0, 2.0 + 0.5 * 4.0, True, False, 2),
        3.0: (4.0, 4.0, True, False, 1),
        5.0: (7.0, 8.0 + 0.5 * 16.0, False, False, 2),  # the third step is not stored
        6.0: (7.0, 16.0, False, False, 1),
        11.0: (14.0, 10.0 + 0.5 * 20.0 + 0.25 * 40.0, False, False, 3),
        12.0: (15.0, 20.0 + 0.5 * 40.0 + 0.25 * 80.0, False, True, 3),
        13.0: (15.0, 40.0 + 0.5 * 80.0, False, True, 2),
        14.0: (15.0, 80.0, False, True, 1),
        16.0: (17.0, 160.0, False, False, 1),
    }


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("n_step", [1, 3])
def test_inactive_rows_are_not_sampled(kind: type[ReplayBuffer], n_step: int) -> None:
    replay = make(kind, n_step)
    replay.extend(step([1.0, 11.0], [2.0, 12.0], [1.0, 1.0], (True, False), active=(True, True)))
    replay.extend(step([2.0, 12.0], [5.0, 13.0], [0.0, 1.0], active=(False, True)))
    replay.extend(step([5.0, 13.0], [6.0, 14.0], [1.0, 1.0], active=(True, True)))
    assert len(replay) == 5
    sampled = by_root(replay)
    assert set(sampled) == {1.0, 5.0, 11.0, 12.0, 13.0}
    assert sampled[1.0] == (2.0, 1.0, True, False, 1)
