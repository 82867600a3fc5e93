"""Two halves of the arms in PyBullet that simulate at the same time."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
import torch

from envs.fanuc import FanucEnv
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.environment import Environment

MakeEnv = Callable[..., FanucEnv]

STEPS = 6


def make_halves(make_env: MakeEnv) -> FanucEnv:
    return make_env(num_envs=9, num_workers=2)


def actions(env: Environment, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return env.full_action_spec["action"].rand()


@pytest.mark.parametrize("view", [lambda env: env, with_action_table])
def test_halves_in_flight_at_once_equal_the_whole(
    make_env: MakeEnv, view: Callable[[FanucEnv], Environment]
) -> None:
    whole, divided = (view(make_halves(make_env)) for _ in range(2))
    expected, root = whole.reset(), divided.reset()
    halves = divided.halves()
    sizes = [half.batch_size[0] for half in halves]
    assert sum(sizes) == 9
    roots = list(root.split(sizes))
    for seed in range(STEPS):
        action = actions(whole, seed)
        step, expected = whole.step_and_maybe_reset(expected.set("action", action))
        parts = action.split(sizes)
        for half, own, part in zip(halves, roots, parts, strict=True):
            half.begin_step(own.set("action", part))
        steps = []
        for index, half in enumerate(halves):
            ended, roots[index] = half.step_and_maybe_reset(roots[index])
            steps.append(ended)
        assert (torch.cat(steps) == step).all()
        assert (torch.cat(roots) == expected).all()


def test_a_half_is_reset_and_saved_while_the_other_simulates(make_env: MakeEnv) -> None:
    env, calm = make_halves(make_env), make_halves(make_env)
    (first, second), (other, _) = env.halves(), calm.halves()
    before = env.reset(), calm.reset()
    assert (before[0] == before[1]).all()
    root = second.reset().set("action", actions(second, 0))
    undisturbed = env.state_dict()
    second.begin_step(root)
    again = env.state_dict()
    assert all(torch.equal(undisturbed["arms"][key], x) for key, x in again["arms"].items())
    ours = first.reset()
    after = second.step_and_maybe_reset(root)[0]["next"]
    calm.load_state_dict(again)
    alone = calm.halves()[1].step_and_maybe_reset(root.exclude("next"))[0]["next"]
    assert (after == alone).all()
    assert ours.batch_size == first.batch_size == other.batch_size


def test_a_step_of_all_arms_undoes_those_of_the_halves(make_env: MakeEnv) -> None:
    env, calm = make_halves(make_env), make_halves(make_env)
    root, expected = env.reset(), calm.reset()
    for half in env.halves():
        own = root[: half.batch_size[0]]
        half.begin_step(own.set("action", actions(half, 1)))
    action = actions(env, 2)
    step, _ = env.step_and_maybe_reset(root.set("action", action))
    wanted, _ = calm.step_and_maybe_reset(expected.set("action", action))
    assert (step["next"] == wanted["next"]).all()


def test_a_worker_that_dies_truncates_arms_of_its_half_only(make_env: MakeEnv) -> None:
    env = make_halves(make_env)
    env.reset()
    halves = env.halves()
    roots = [half.reset().set("action", actions(half, 0)) for half in halves]
    worker = psutil.Process(env.worker_pids[1])
    worker.suspend()  # it dies before it answers
    for half, root in zip(halves, roots, strict=True):
        half.begin_step(root)
    worker.kill()
    steps = [half.step_and_maybe_reset(r) for half, r in zip(halves, roots, strict=True)]
    assert [bool(step["next", "truncated"].any()) for step, _ in steps] == [False, True]
    assert steps[1][0]["next", "truncated"].all()
    again = [
        half.step_and_maybe_reset(root.set("action", actions(half, 3)))
        for half, (_, root) in zip(halves, steps, strict=True)
    ]
    assert not any(step["next", "truncated"].any() for step, _ in again)


def test_one_worker_has_no_halves(make_env: MakeEnv) -> None:
    assert make_env().halves() == ()
    assert with_action_table(make_env()).halves() == ()
