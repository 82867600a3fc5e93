from __future__ import annotations

from itertools import pairwise

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.envs import RewardScaling, TransformedEnv

from tests.worlds import IdentityWorld
from torchrl_gpu.collector import BatchCollector

CPU = torch.device("cpu")


def policy() -> TensorDictModule:
    """Act half of what is observed."""
    return TensorDictModule(lambda o: o / 2, in_keys=["observation"], out_keys=["action"])


def collect(collector: BatchCollector, steps: int) -> list[TensorDictBase]:
    return [collector.step(policy()).clone() for _ in range(steps)]


def test_transitions_follow_one_another_and_end_with_the_true_last_observation() -> None:
    world = IdentityWorld(num_envs=3, max_episode_steps=4)
    transitions = collect(BatchCollector(world, CPU, ["observation"]), 9)
    for step, (now, later) in enumerate(pairwise(transitions), start=1):
        assert torch.equal(now["action"], now["observation"] / 2)
        ends = step % 4 == 0
        assert now["next", "truncated"].all() == ends
        assert torch.equal(now["next", "observation"], later["observation"]) == (not ends)


def test_a_world_goes_on_from_a_saved_state() -> None:
    first = BatchCollector(IdentityWorld(), CPU, ["observation"])
    collect(first, 5)
    state = first.state_dict()
    state = {**state, "world": {k: v.clone() for k, v in state["world"].items()}}
    expected = collect(first, 6)
    second = BatchCollector(IdentityWorld(), CPU, ["observation"])
    second.load_state_dict(state)
    for left, right in zip(expected, collect(second, 6), strict=True):
        assert (left == right).all()


def test_transforms_of_torchrl_apply() -> None:
    plain = collect(BatchCollector(IdentityWorld(), CPU, ["observation"]), 3)
    world = TransformedEnv(IdentityWorld(), RewardScaling(loc=0.0, scale=10.0))
    scaled = collect(BatchCollector(world, CPU, ["observation"]), 3)
    for left, right in zip(plain, scaled, strict=True):
        torch.testing.assert_close(10 * left["next", "reward"], right["next", "reward"])
