from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from envs.gym import GymnasiumEnv

MakeGym = Callable[..., GymnasiumEnv]


@pytest.fixture
def make_gym() -> Iterator[MakeGym]:
    """Build environments with two copies by default, and close them after the test."""
    with ExitStack() as made:

        def make(name: str, **settings: Any) -> GymnasiumEnv:
            env = GymnasiumEnv(name=name, **{"num_envs": 2, **settings})
            return made.enter_context(closing(env))

        yield make
