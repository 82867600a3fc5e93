"""The environment in Gymnasium."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import torchrl_gpu.gymnasium

gymnasium.register_envs(torchrl_gpu.gymnasium)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LiftCube", "LiftCubePixels"])
def test_the_checkers_accept_it(name: str) -> None:
    with closing(gymnasium.make(f"torchrl_gpu/{name}-v0")) as env:
        check_env(env.unwrapped)
        checker = pytest.importorskip("stable_baselines3.common.env_checker")
        checker.check_env(env.unwrapped, warn=False)


@pytest.mark.slow
def test_a_batch_is_seeded_by_all_seeds_together() -> None:
    with closing(gymnasium.make_vec("torchrl_gpu/LiftCube-v0", num_envs=2)) as envs:
        first, _ = envs.reset(seed=1)
        assert not np.array_equal(first[0], first[1])
        assert not np.array_equal(envs.reset(seed=2)[0], first)
        assert np.array_equal(envs.reset(seed=[1, 2])[0], first)
