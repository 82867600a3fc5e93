from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from envs.lift_cube import LiftCubeEnv


@pytest.fixture(scope="package", autouse=True)
def _genesis() -> None:
    if find_spec("genesis") is None:
        pytest.skip('Genesis is not installed: pip install -e ".[genesis]"')


@pytest.fixture(scope="package")
def lift(_genesis: None) -> Iterator[LiftCubeEnv]:
    """Four environments observed by state; building the scene takes up to a minute."""
    env = LiftCubeEnv(num_envs=4, seed=3)
    yield env
    env.close()
