from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl.envs import Compose, TransformedEnv
from torchrl.record import CSVLogger, PixelRenderTransform, VideoRecorder

from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import StraightToGoal
from envs.marinenav.render import ALARM, BUOY, WRECK, SeaRenderer
from tests.envs.marinenav.test_env import CROSSING
from torchrl_gpu.environments.robots import SharedPolicy
from torchrl_gpu.errors import ConfigurationError


def _shows(picture: torch.Tensor, colour: tuple[int, int, int], tolerance: int = 6) -> bool:
    """Return whether an area contains the colour."""
    return bool(((picture.int() - torch.tensor(colour)).abs().amax(-1) < tolerance).sum() > 40)


def test_image_contains_buoys_trails_wrecks_and_give_way_wedges() -> None:
    buoy = {"position": [[45.0, 45.0]], "radius": [1.0]}
    env = MarineNavEnv.from_scenarios([{**CROSSING, "obstacles": buoy}], noise=False)
    now = env.reset()
    first = env.render()
    assert first.shape == (720, 720, 3)
    assert first.dtype == torch.uint8
    assert _shows(first, BUOY)
    assert not _shows(first, WRECK)
    wedges, wrecks = [], []
    for _ in range(10):
        now["robots", "action"] = torch.ones(1, 2, 2)
        now = env.step(now)["next"]
        picture = env.render()
        wedges.append(_shows(picture, ALARM, tolerance=30))  # drawn with some transparency
        wrecks.append(_shows(picture, WRECK))
    assert wedges == [False] * 6 + [True] * 2 + [False] * 2, "as they meet head on"
    assert wrecks == [False] * 8 + [True] * 2
    without_trails = SeaRenderer().draw(env._state.now)
    assert not torch.equal(picture, without_trails)


def test_several_seas_are_drawn_in_a_grid() -> None:
    env = MarineNavEnv(num_envs=4, num_vortices=2)
    env.reset()
    grid = env.render([0, 1, 2, 3])
    assert grid.shape == (720, 720, 3)
    tiles = [grid[:360, :360], grid[:360, 360:], grid[360:, :360], grid[360:, 360:]]
    assert all(not torch.equal(tiles[0], tile) for tile in tiles[1:])


@pytest.mark.parametrize("index", [-1, 4, [], [0, 4], 1.0, [1.0], None])
def test_seas_that_do_not_exist_are_not_drawn(index: Any) -> None:
    env = MarineNavEnv(num_envs=4)
    env.reset()
    with pytest.raises(ConfigurationError, match="choose some of the environments 0 to 3"):
        env.render(index)


@pytest.mark.parametrize("kind", [np.int64, np.array, torch.tensor])
def test_indices_may_be_those_of_numpy_and_torch(kind: Callable[..., Any]) -> None:
    env = MarineNavEnv(num_envs=4)
    env.reset()
    assert torch.equal(env.render(kind(1)), env.render(1))
    assert torch.equal(env.render([kind(1), kind(2)]), env.render([1, 2]))


def test_caption_counts_the_arrived_vessels() -> None:
    near = {**CROSSING, "goal": [[7.0, 20.0], [5.0, 20.0]]}
    env = MarineNavEnv.from_scenarios([CROSSING, near], noise=False)
    now = env.reset()
    now["robots", "action"] = torch.zeros(2, 2, 2)
    env.step(now)
    assert [env.caption(sea) for sea in (0, 1)] == [
        "0.5 s, 0 of 2 vessels arrived",
        "0.5 s, 1 of 2 vessels arrived",
    ]
    assert env.measurements(1) == {"vessels arrived [%]": 50.0}


def test_the_clock_of_a_sea_stands_still_once_its_episode_has_ended() -> None:
    near = {**CROSSING, "goal": [[7.0, 20.0], [33.0, 20.0]]}
    env = MarineNavEnv.from_scenarios([CROSSING, near], noise=False)
    now = env.reset()
    for _ in range(3):
        now["robots", "action"] = torch.zeros(2, 2, 2)
        now = env.step(now)["next"]
    assert [env.caption(sea)[:5] for sea in (0, 1)] == ["1.5 s", "0.5 s"]


@pytest.mark.parametrize("seas", [0, [0, 1, 2, 3]])
def test_torchrl_video_recorder_films_the_seas(seas: int | list[int], tmp_path: Path) -> None:
    env = MarineNavEnv(num_envs=4, num_robots=2, num_obstacles=0, max_episode_steps=4)
    logger = CSVLogger("films", str(tmp_path), video_format="pt")
    films = Compose(PixelRenderTransform(index=seas), VideoRecorder(logger, tag="seas", skip=1))
    filmed = TransformedEnv(env, films)
    filmed.rollout(6, SharedPolicy(StraightToGoal(), filmed), break_when_any_done=False)
    filmed.transform.dump()
    (path,) = tmp_path.rglob("*.pt")
    film = torch.load(path).reshape(-1, 3, 720, 720)
    assert len(film) >= 6
    assert (film[0] != film[1]).any()
