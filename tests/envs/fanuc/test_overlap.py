"""Steps of arms in PyBullet that begin before the program asks for their result."""

import sys
from collections.abc import Callable

import psutil
import pytest
import torch
from tensordict import TensorDictBase

from envs.fanuc import FanucEnv
from envs.fanuc.worker_pool import NICENESS
from torchrl_gpu.devices.host import usable_cores
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.environment import Environment

MakeEnv = Callable[..., FanucEnv]

STEPS = 8
LOWEST_PRIORITY = 19  # of Linux, which sets a higher number to this one


def roots(env: Environment, seed: int = 0) -> list[torch.Tensor]:
    """Return actions of several steps."""
    torch.manual_seed(seed)
    return [env.full_action_spec["action"].rand() for _ in range(STEPS)]


def overlapped(env: Environment, root: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
    env.begin_step(root)
    return env.step_and_maybe_reset(root)


def assert_same_future(env: Environment, other: Environment, *states: TensorDictBase) -> None:
    """Assert that two environments give equal transitions, the first one with overlap."""
    ours, theirs = states
    for action in roots(env, seed=1):
        step, ours = overlapped(env, ours.set("action", action))
        expected, theirs = other.step_and_maybe_reset(theirs.set("action", action))
        assert (step["next"] == expected["next"]).all()


@pytest.mark.parametrize("view", [lambda env: env, with_action_table])
def test_a_begun_step_equals_a_whole_one(
    make_env: MakeEnv, view: Callable[[FanucEnv], Environment]
) -> None:
    ours, theirs = (view(make_env(max_episode_steps=5)) for _ in range(2))
    assert ours.capabilities.can_overlap
    assert_same_future(ours, theirs, ours.reset(), theirs.reset())


def undo_by_reset(env: FanucEnv, root: TensorDictBase) -> TensorDictBase:
    env.set_seed(3)
    return env.reset()


def undo_by_state(env: FanucEnv, root: TensorDictBase) -> TensorDictBase:
    env.load_state_dict(env.state_dict())
    return env.observe()


def undo_by_another_step(env: FanucEnv, root: TensorDictBase) -> TensorDictBase:
    return root.clone()


@pytest.mark.parametrize("undo", [undo_by_reset, undo_by_state, undo_by_another_step])
def test_a_begun_step_can_be_undone(
    make_env: MakeEnv, undo: Callable[[FanucEnv, TensorDictBase], TensorDictBase]
) -> None:
    env, calm = make_env(), make_env()
    root, expected = env.reset(), calm.reset()
    before = env.state_dict()
    env.begin_step(root.set("action", torch.full((4, 6), 0.5)))
    during = env.state_dict()
    assert all(torch.equal(before["arms"][name], x) for name, x in during["arms"].items())
    root, expected = undo(env, root), undo(calm, expected)
    assert_same_future(env, calm, root, expected)


def test_a_worker_that_dies_during_a_begun_step_is_replaced(make_env: MakeEnv) -> None:
    env, calm = (make_env(num_envs=8, num_workers=2) for _ in range(2))
    action = torch.full((8, 6), 0.3)
    root, expected = env.reset().set("action", action), calm.reset().set("action", action)
    worker = psutil.Process(env.worker_pids[1])
    worker.suspend()  # it dies before it answers
    env.begin_step(root)
    worker.kill()
    after = env.step_and_maybe_reset(root)[0]["next"]
    assert after["truncated"].squeeze(1).tolist() == [False] * 4 + [True] * 4
    assert (after[:4] == calm.step_and_maybe_reset(expected)[0]["next"][:4]).all()
    assert not overlapped(env, env.observe().set("action", action))[0]["next", "truncated"].any()


@pytest.mark.skipif(sys.platform != "linux", reason="pins no processes")
def test_workers_give_way_to_a_program_that_computes_meanwhile(make_env: MakeEnv) -> None:
    cores = usable_cores()
    env = make_env(num_workers=len(cores))
    action = torch.zeros(4, 6)

    def shares() -> list[tuple[int, list[int]]]:
        workers = [psutil.Process(pid) for pid in env.worker_pids]
        return [(worker.nice(), worker.cpu_affinity()) for worker in workers]

    root = env.step_and_maybe_reset(env.reset().set("action", action))[1]
    before = shares()
    assert before == [(psutil.Process().nice(), [core]) for core in cores[: len(before)]]
    root = overlapped(env, root.set("action", action))[1]
    psutil.Process(env.worker_pids[0]).kill()
    overlapped(env, root.set("action", action))  # the replacement gives way, too
    niceness = min(before[0][0] + NICENESS, LOWEST_PRIORITY)
    assert shares() == [(niceness, cores)] * len(before)


def test_close_ends_a_begun_step(make_env: MakeEnv) -> None:
    env = make_env()
    root = env.reset().set("action", torch.zeros(4, 6))
    env.begin_step(root)
    pids = env.worker_pids
    env.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        env.step_and_maybe_reset(root)
