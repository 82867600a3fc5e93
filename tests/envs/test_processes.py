"""Worker processes leave the cores to the program that wakes them."""

import os
from collections.abc import Callable
from contextlib import closing

import pytest

from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from torchrl_gpu.environments.environment import Environment


def arms() -> tuple[Environment, list[int]]:
    env = FanucEnv(num_envs=2, num_workers=1)
    return env, env.worker_pids


def carts() -> tuple[Environment, list[int]]:
    env = GymnasiumEnv(name="CartPole-v1", num_envs=2, vectorization="async")
    env.reset()
    return env, [process.pid for process in env._vector.processes]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has such a policy")
@pytest.mark.parametrize("make", [arms, carts])
def test_workers_do_not_preempt_the_program(
    make: Callable[[], tuple[Environment, list[int]]],
) -> None:
    env, pids = make()
    with closing(env):
        assert {os.sched_getscheduler(pid) for pid in pids} == {os.SCHED_BATCH}
