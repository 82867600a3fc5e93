"""The program waits for its worker processes, which leave the cores to it."""

import multiprocessing
import os
import select
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from envs.processes import Patience
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


class PipeConnection:
    """A pipe of `multiprocessing` under Windows, whose class is not `Connection`."""

    def __init__(self, connection: Any) -> None:
        self.poll = connection.poll


def test_patience_ends_for_a_pipe_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll", raising=False)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        pipe: Any = PipeConnection(ours)
        assert not Patience(0.01).wait(pipe)
        theirs.send("answer")
        assert Patience(0.01).wait(pipe)
