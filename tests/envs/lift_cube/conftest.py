from collections.abc import Iterator

import pytest
import torch

from envs.genesis import start_genesis
from envs.lift_cube import LiftCubeEnv
from torchrl_gpu.errors import ConfigurationError


@pytest.fixture(scope="package", autouse=True)
def _genesis() -> None:
    try:
        start_genesis(torch.device("cpu"))
    except ConfigurationError as error:  # not installed, or without OpenGL
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def lift(_genesis: None) -> Iterator[LiftCubeEnv]:
    """Four environments observed by state; building the scene takes up to a minute."""
    env = LiftCubeEnv(num_envs=4, seed=3)
    yield env
    env.close()
