from collections.abc import Iterator

import pytest
import torch

from envs.fanuc import FanucEnv
from envs.genesis import start_genesis
from torchrl_gpu.errors import ConfigurationError


@pytest.fixture(scope="package")
def genesis() -> Iterator[FanucEnv]:
    """Eight arms in Genesis; building the scene takes up to a minute."""
    try:
        start_genesis(torch.device("cpu"))
    except ConfigurationError as error:  # not installed, or without OpenGL
        pytest.skip(str(error))
    env = FanucEnv(num_envs=8, simulator="genesis", seed=3, max_episode_steps=40)
    yield env
    env.close()
