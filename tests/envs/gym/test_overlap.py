"""Steps of environments in processes that begin before the program asks for their result."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from envs.gym import GymnasiumEnv


def make(vectorization: Any, autoreset: Any = "disabled") -> GymnasiumEnv:
    return GymnasiumEnv(
        name="CartPole-v1", num_envs=2, vectorization=vectorization, autoreset=autoreset
    )


@pytest.fixture
def env() -> Iterator[GymnasiumEnv]:
    env = make("async")
    yield env
    env.close()


@pytest.mark.parametrize("autoreset", ["disabled", "same_step", "next_step"])
def test_a_begun_step_equals_a_whole_one(autoreset: str) -> None:
    ours, theirs = make("async", autoreset), make("sync", autoreset)
    assert ours.capabilities.can_overlap
    assert not theirs.capabilities.can_overlap
    root, expected = ours.reset(), theirs.reset()
    dones = 0
    for _ in range(40):
        action = ours.action_spec.one()  # the pole falls within ten steps
        ours.begin_step(root.set("action", action))
        step, root = ours.step_and_maybe_reset(root)
        other, expected = theirs.step_and_maybe_reset(expected.set("action", action))
        assert (step["next"] == other["next"]).all()
        dones += int(step["next", "done"].sum())
    assert dones > 0
    ours.close()


def test_a_reset_discards_a_begun_step(env: GymnasiumEnv) -> None:
    env.begin_step(env.rand_action(env.reset()))
    env.set_seed(5)
    started = env.reset()["observation"]
    calm = make("sync")
    calm.set_seed(5)
    assert torch.equal(started, calm.reset()["observation"])
    assert env.rollout(2).shape == (2, 2)


def test_other_actions_than_those_of_a_begun_step_are_refused(env: GymnasiumEnv) -> None:
    root = env.rand_action(env.reset())
    env.begin_step(root)
    with pytest.raises(RuntimeError, match="other actions"):
        env.step_and_maybe_reset(root.clone())
    assert env.step_and_maybe_reset(root)[0]["next", "reward"].shape == (2, 1)
