from collections.abc import Iterator

import pytest

from envs.lift_cube import LiftCubeEnv
from tests.helpers.genesis import start_or_skip


@pytest.fixture(scope="package", autouse=True)
def _genesis() -> None:
    start_or_skip()


@pytest.fixture(scope="package")
def lift(_genesis: None) -> Iterator[LiftCubeEnv]:
    """Four environments observed by state; building the scene takes up to a minute."""
    env = LiftCubeEnv(num_envs=4, seed=3)
    yield env
    env.close()
