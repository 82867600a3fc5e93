"""Fixtures of the environments: one cache of targets per session, and closing after each test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envs.fanuc import FanucEnv


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHRL_GPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def make_env() -> Iterator[Callable[..., FanucEnv]]:
    """Build environments with four arms by default, and close them after the test."""
    made: list[FanucEnv] = []

    def make(**settings: Any) -> FanucEnv:
        made.append(FanucEnv(**{"num_envs": 4, "num_workers": 1, **settings}))
        return made[-1]

    yield make
    for env in made:
        env.close()
