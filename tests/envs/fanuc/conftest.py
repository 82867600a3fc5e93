from collections.abc import Iterator

import pytest

from envs.fanuc import FanucEnv
from envs.fanuc.robot import Robot, load_robot
from tests.helpers.genesis import start_or_skip


@pytest.fixture(params=["lr_mate_200ic", "lr_mate_200id"])
def robot(request: pytest.FixtureRequest) -> Robot:
    """Each arm of this repository."""
    return load_robot(request.param)


@pytest.fixture(scope="package")
def genesis() -> Iterator[FanucEnv]:
    """Eight arms in Genesis; building the scene takes up to a minute."""
    start_or_skip()
    env = FanucEnv(num_envs=8, simulator="genesis", seed=3, max_episode_steps=40)
    yield env
    env.close()
