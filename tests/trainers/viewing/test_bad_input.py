"""What `viewer=web` lacks is one line before anything is built."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.envs.gym.environments  # noqa: F401
from tests.helpers.program import Call

DQN = ("agent=dqn", "env=gym", "env.name=CartPole-v1", "experiment=null", "viewer=web")


@pytest.fixture
def taken() -> Iterator[int]:
    """Port on which another program listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use(taken: int, tmp_path: Path, program: Call) -> None:
    assert program(*DQN, f"viewer_port={taken}").refusal() == (
        f"viewer_port={taken}: cannot listen on localhost: Address already in use; choose another "
        "port, or viewer_port=0 for a free one"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        (
            "viewer=web: only mode=train and mode=demo have a viewer; mode=eval does without",
            (*DQN, "mode=eval"),
        ),
        (
            "demo.video: viewer=web shows episode after episode and makes no film; leave it out",
            (*DQN, "demo.video=gif"),
        ),
        (
            "demo.episodes: viewer=web shows",
            ("agent=random", *DQN[1:], "mode=demo", "demo.episodes=2"),
        ),
        (
            "demo.num_envs=65: gym shows at most 64 at a time; use demo.num_envs=64",
            (*DQN, "demo.num_envs=65"),
        ),
        ("viewer_host=nowhere.invalid", (*DQN, "viewer_host=nowhere.invalid")),
        (
            "viewer_host=192.0.2.1: not an address of this machine",
            (*DQN, "viewer_host=192.0.2.1"),
        ),
        (
            "viewer=web: IdentityEnv cannot render",
            ("agent=sac", "env._target_=tests.helpers.environments.IdentityEnv", "viewer=web"),
        ),
        (
            "viewer=web: GymnasiumEnv cannot render",
            ("agent=dqn", "env=gym", "env.name=Undrawable-v0", "viewer=web"),
        ),
    ],
)
def test_a_setting_that_does_not_fit(
    reason: str, arguments: tuple[str, ...], tmp_path: Path, program: Call
) -> None:
    assert program(*arguments, "viewer_port=0").refusal().startswith(reason)
    assert not list(tmp_path.iterdir())


def test_a_film_that_cannot_be_drawn(tmp_path: Path, program: Call) -> None:
    undrawable = ("agent=random", "env=gym", "env.name=Undrawable-v0")
    ended = program(*undrawable, "mode=demo", "viewer=web", "viewer_port=0")
    assert ended.code == 2
    assert ended.err == (
        "error: mode=demo: Undrawable-v0 cannot render images: 'rgb_array' is not among its render "
        "modes (ansi)\n"
    )
    assert not list(tmp_path.iterdir())
