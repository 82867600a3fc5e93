import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import imageio.v2 as imageio
import pytest
import torch
from PIL import Image, ImageSequence

from tests.helpers.environments import IdentityEnv
from tests.helpers.training import before_each
from tests.trainers.evaluation.test_evaluation import policy_for
from torchrl_gpu.environments.captions import LINE_HEIGHT
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.film import FilmedEpisodes, film

CPU = torch.device("cpu")
STEPS = 24


class DrawnEnv(IdentityEnv):
    """Renders the number of steps as the height of a bar."""

    capabilities = replace(IdentityEnv.capabilities, can_render=True)

    def __init__(self, step_seconds: float | None) -> None:
        super().__init__(num_envs=1, max_episode_steps=STEPS)
        self.capabilities = replace(self.capabilities, step_seconds=step_seconds)
        self.drawn: list[int] = []

    def render(self, index: Any = 0) -> torch.Tensor:
        done = int(self.steps[index])
        self.drawn.append(done)
        picture = torch.zeros(64, 64, 3, dtype=torch.uint8)
        picture[:done] = 255
        return picture


CASES = [
    # Seconds per step, speed, frames per second of MP4 and GIF.
    (1 / 20, 1.0, 20.0, 20.0),
    (1 / 60, 1.0, 60.0, 20.0),
    (1 / 60, 2.0, 60.0, 20.0),
    (1 / 50, 0.5, 25.0, 25.0),
    (1 / 100, 1.0, 50.0, 25.0),
    (1.0, 10.0, 10.0, 10.0),
    (None, 1.0, 30.0, 100 / 7),
]


@pytest.mark.parametrize(("step_seconds", "speed", "mp4", "gif"), CASES)
@pytest.mark.parametrize("video", ["mp4", "gif"])
def test_film_plays_in_real_time_times_speed(
    video: str, step_seconds: float | None, speed: float, mp4: float, gif: float, tmp_path: Path
) -> None:
    env = DrawnEnv(step_seconds)
    path = film(
        env,
        policy_for(env),
        CPU,
        tmp_path,
        episodes=1,
        video=video,  # type: ignore[arg-type]
        speed=speed,
        seconds_between=0.0,
    ).path
    if video == "mp4":
        reader: Any = imageio.get_reader(path)
        with closing(reader):
            frame_seconds = [1 / reader.get_meta_data()["fps"]] * reader.count_frames()
        expected = mp4
    else:
        with Image.open(path) as image:
            frame_seconds = [
                frame.info["duration"] / 1000 for frame in ImageSequence.Iterator(image)
            ]
        expected = gif
    assert frame_seconds == pytest.approx([1 / expected] * len(env.drawn), rel=1e-3)
    # From the first to the last state, to within one frame.
    seconds = STEPS * (1 / 30 if step_seconds is None else step_seconds) / speed
    assert sum(frame_seconds[:-1]) == pytest.approx(seconds, abs=1.001 / expected)
    assert (env.drawn[0], env.drawn[-1]) == (0, STEPS)
    assert env.drawn == sorted(set(env.drawn))


@pytest.mark.parametrize("video", ["mp4", "gif"])
def test_speeds_and_pauses_that_no_film_can_have_are_refused(video: Any, tmp_path: Path) -> None:
    env = DrawnEnv(0.5)
    with pytest.raises(ConfigurationError, match=r"would last 5e.09 s, .* speed above 0\.005"):
        film(env, policy_for(env), CPU, tmp_path, video=video, speed=1e-10)
    with pytest.raises(ConfigurationError, match="seconds_between=inf: input should be a finite"):
        film(env, policy_for(env), CPU, tmp_path, video=video, seconds_between=math.inf)
    assert not list(tmp_path.iterdir())
    made = film(env, policy_for(env), CPU, tmp_path, episodes=1, video=video, speed=0.005)
    assert made.path.stat().st_size > 0


@pytest.mark.parametrize("video", ["mp4", "gif"])
def test_a_film_that_was_interrupted_leaves_nothing(video: Any, tmp_path: Path) -> None:
    env = DrawnEnv(0.5)
    before_each(env, "render", mock.Mock(side_effect=[*STEPS // 2 * [None], KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        film(env, policy_for(env), CPU, tmp_path / "runs" / "videos", video=video)
    assert not list(tmp_path.iterdir())


def test_small_pictures_are_enlarged(tmp_path: Path) -> None:
    env = DrawnEnv(None)
    made = film(env, policy_for(env), CPU, tmp_path, episodes=1, video="gif")
    with Image.open(made.path) as image:
        assert image.size == (256, 256 + LINE_HEIGHT)


class SizedEnv(DrawnEnv):
    """Renders black pictures of one size."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(None)
        self.shape_of_picture = height, width, 3

    def render(self, index: Any = 0) -> torch.Tensor:
        return torch.zeros(self.shape_of_picture, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("size", "filmed"),
    [((500, 500), (500, 500)), ((242, 246), (242, 246)), ((301, 243), (302, 244))],
)
def test_a_film_has_the_size_of_its_pictures_or_the_next_even_one(
    size: tuple[int, int], filmed: tuple[int, int], tmp_path: Path
) -> None:
    env = SizedEnv(*size)
    path = film(env, policy_for(env), CPU, tmp_path, episodes=1).path
    reader: Any = imageio.get_reader(path)
    with closing(reader):
        assert reader.get_data(0).shape == (filmed[1] + LINE_HEIGHT, filmed[0], 3)


class Captioned(IdentityEnv):
    """Renders a black picture; one environment of the batch has a caption."""

    capabilities = replace(IdentityEnv.capabilities, can_render=True, renders_several=True)

    def render(self, index: Any = 0) -> torch.Tensor:
        return torch.zeros(400, 800, 3, dtype=torch.uint8)

    def caption(self, index: int) -> str:
        return "a caption that is longer than a return" if index == 3 else ""

    def measurements(self, index: int) -> dict[str, float]:
        return {"number [1]": float(index)}


def test_film_has_captions_and_reports_its_episodes(tmp_path: Path) -> None:
    env = Captioned(num_envs=4, max_episode_steps=3)
    made = film(env, policy_for(env), CPU, tmp_path, episodes=2, num_envs=4)
    assert (made.evaluation.episodes, made.evaluation.success) == (8, 1.0)
    assert made.measurements == {"number [1]": 1.5}
    assert str(made).splitlines()[1].strip() == "mean at the end: number [1] 1.5"
    reader: Any = imageio.get_reader(made.path)
    with closing(reader):
        picture = reader.get_data(0)
    rows = (0, LINE_HEIGHT + 200)
    tiles = [picture[y : y + LINE_HEIGHT, x : x + 400] for y in rows for x in (0, 400)]
    bright = [int((tile > 128).sum()) for tile in tiles]
    assert min(bright) > 100, "every environment has a caption"
    assert bright[3] > max(bright[:3])


def test_more_environments_than_fit_into_a_film_are_refused(tmp_path: Path) -> None:
    for env, most in ((Captioned(num_envs=4), 64), (DrawnEnv(0.5), 1)):
        with pytest.raises(ConfigurationError, match=f"; use demo.num_envs={most}$"):
            film(env, policy_for(env), CPU, tmp_path, num_envs=65)


class Measured(IdentityEnv):
    """Measures the number of steps of the episode."""

    def measurements(self, index: int) -> dict[str, float]:
        return {"steps": float(self.steps[index])}


def test_an_environment_without_captions_shows_the_return_so_far() -> None:
    env = IdentityEnv(num_envs=2)
    outcomes = FilmedEpisodes(env, 2)
    root = env.reset()
    expected = torch.zeros(2)
    for _ in range(2):
        root["action"] = torch.ones(2, 2)
        step = env.step(root)
        outcomes.add(step)
        expected += step["next", "reward"][:, 0]
        root = step["next"].exclude("reward")
    assert outcomes.captions() == [f"return {value:.1f}" for value in expected.tolist()]
    outcomes.begin()
    assert outcomes.captions() == ["return 0.0"] * 2


def test_only_the_first_episode_of_each_filmed_environment_counts() -> None:
    """Filmed environments that ended go on stepping until the last one has ended."""
    env = Measured(num_envs=4, max_episode_steps=8, terminates_above=0.3)
    outcomes = FilmedEpisodes(env, 3)
    ends: list[float] = []
    for _ in range(5):
        root, ended = env.reset(), torch.zeros(4, dtype=torch.bool)
        outcomes.begin()
        for step in range(1, 9):
            after = env.step(root.set("action", env.numbers.clone()))
            outcomes.add(after)
            done = after["next", "done"][:, 0]
            ends += [step] * int((done & ~ended)[:3].sum())
            ended |= done
            root = after["next"].exclude("reward")
    assert len(set(ends)) > 2, "episodes of different lengths"
    evaluation = outcomes.evaluation()
    assert evaluation.episodes == len(ends) == 15
    assert evaluation.mean_length == pytest.approx(sum(ends) / 15)
    assert evaluation.success == 1.0
    assert outcomes.measurements() == {"steps": pytest.approx(sum(ends) / 15)}
