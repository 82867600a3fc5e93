"""The viewer: what plays, what the page shows, and what it costs while nobody looks."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.browser import opened
from tests.helpers.clock import Clock
from tests.helpers.environments import IdentityEnv
from tests.helpers.training import before_each
from tests.trainers.evaluation.test_evaluation import policy_for
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.environments.scene import Kind, Pose, Scene, Shape
from torchrl_gpu.errors import ConfigurationError
from trainers.modes.demo import show
from trainers.run import run, settings_of
from trainers.runs.loggers import MetricLogger
from trainers.viewing.followed_run import BEST, NEWEST, LearningCurves, WatchedCheckpoints
from trainers.viewing.page import Page, free_port
from trainers.viewing.player import MAX_STEPS, Player
from trainers.viewing.scene import DrawnScene
from trainers.viewing.viewer import Viewer

pytest.importorskip("viser")

CPU = torch.device("cpu")
COLOR = (200, 60, 20)
CARTPOLE = ("agent=random", "env=gym", "env.name=CartPole-v1")
_FRAME_SECONDS = 1 / 30
DEMO = ("mode=demo", "viewer=web", "viewer_port=0", "device=cpu")


class EndedError(Exception):
    """Ends a viewer."""


class WatchedPage(Page):
    """Page that is watched for a number of rounds, and then ends the viewer."""

    def __init__(self) -> None:
        super().__init__("localhost", free_port("localhost", 0), "a test")
        self.rounds, self.watched = 0, True
        self.pictures: list[np.ndarray] = []
        self.texts: list[str] = []

    @property
    def is_watched(self) -> bool:
        self.rounds -= 1
        if self.rounds < 0:
            raise EndedError
        return self.watched

    def show(self, picture: np.ndarray) -> None:
        super().show(picture)
        self.pictures.append(picture)

    def say(self, text: str) -> None:
        super().say(text)
        self.texts.append(text)


class DrawnEnv(IdentityEnv):
    """Draws the number of steps of an environment as a column, after its own number."""

    capabilities = replace(IdentityEnv.capabilities, can_render=True, step_seconds=0.001)

    def render(self, index: Any = 0) -> Tensor:
        picture = torch.zeros(240, 320, 3, dtype=torch.uint8)
        picture[:, :, 0], picture[:, :, 1] = index, int(self.steps[index])
        return picture

    def reward_terms(self, index: int) -> dict[str, float]:
        return {"error": -float(index)}


def steps_in(picture: np.ndarray) -> tuple[int, int]:
    """Return the number of the environment, and of its steps."""
    index, steps, _ = picture[-1, -1].tolist()
    return index, steps


@pytest.fixture
def env() -> DrawnEnv:
    return DrawnEnv(num_envs=3, max_episode_steps=7)


@pytest.fixture
def page() -> Iterator[WatchedPage]:
    with closing(WatchedPage()) as page:
        yield page


class SceneEnv(DrawnEnv):
    """Has a body as far along x as the number of steps, and another one on it."""

    def scene(self, kind: Kind = "box") -> Scene:
        shape = Shape(kind, (0.1, 0.2, 0.3), (1, 0, 0), np.eye(4), "no_such_file.stl")
        bodies = {"cart": [shape], "cart/pole": [shape, shape]}
        return Scene(bodies, self._poses, (2.0, 2.0, 2.0), (0.0, 0.0, 0.0), 1.0)

    def _poses(self, index: int) -> dict[str, Pose]:
        place = np.eye(4)
        place[0, 3] = float(self.steps[index])
        turned = np.diag([-1.0, -1.0, 1.0, 1.0])
        return {"cart": place, "cart/pole": turned}


def viewer_of(
    page: Page,
    env: DrawnEnv,
    run: Path | None = None,
    loaded: list[Path] | None = None,
    scene: DrawnScene | None = None,
) -> Viewer:
    checkpoints = WatchedCheckpoints(run, "agent=random")
    names = checkpoints.names()
    page.add_controls(names, names[0], env.num_envs, 1.0)
    learning = None if run is None else LearningCurves(run)
    load = [] if loaded is None else loaded
    player = Player(env, policy_for(env), CPU)
    return Viewer(page, player, checkpoints, load.append, scene, learning, 0.0, _FRAME_SECONDS)


@pytest.fixture
def demo(page: WatchedPage, monkeypatch: pytest.MonkeyPatch) -> WatchedPage:
    """Page of a demo of five rounds."""
    page.rounds = 5
    monkeypatch.setattr("trainers.modes.demo.Page", lambda *_: page)
    return page


def play(viewer: Viewer, rounds: int) -> None:
    """Let a viewer play on its page for some rounds."""
    assert isinstance(viewer.page, WatchedPage)
    viewer.page.rounds = rounds
    with pytest.raises(EndedError):
        viewer.run()


@pytest.mark.parametrize(
    ("host", "name"), [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_address_of_the_page_leads_to_it(host: str, name: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    port = free_port(host, 0)
    with closing(Page(host, port, "a test")) as page:
        assert page.address == f"http://{name}:{port}"
        with urllib.request.urlopen(page.address, timeout=30) as answer:
            assert answer.status == 200


def test_a_browser_that_leaves_at_once_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port("localhost", 0)
    with closing(Page("localhost", port, "a test")) as page:
        socket.create_connection(("127.0.0.1", port)).close()
        with urllib.request.urlopen(page.address, timeout=30) as answer:
            assert answer.status == 200
    assert caplog.records == []


@pytest.mark.parametrize("window", [(1300, 0), (1300, 1), (0, 0), (1, 900)])
def test_a_window_that_is_hardly_open_gets_a_picture_of_usual_size(
    window: tuple[int, int], page: WatchedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, ...]] = []
    scene = SimpleNamespace(set_background_image=lambda picture, **_: sizes.append(picture.shape))
    camera = SimpleNamespace(image_width=window[0], image_height=window[1])
    client = SimpleNamespace(camera=camera, scene=scene)
    monkeypatch.setattr(page._server, "get_clients", lambda: {0: client})
    page.show(np.zeros((240, 320, 3), np.uint8))
    ((height, width, _),) = sizes
    assert 240 <= height <= 3200
    assert 320 <= width <= 2400


def test_nothing_is_simulated_while_nobody_watches(page: WatchedPage, env: DrawnEnv) -> None:
    page.watched = False
    play(viewer_of(page, env), rounds=3)
    assert [steps_in(picture) for picture in page.pictures] == [(0, 0)]
    assert (env.steps == 0).all()


def test_every_episode_is_shown_from_its_first_to_its_last_state(
    page: WatchedPage, env: DrawnEnv
) -> None:
    play(viewer_of(page, env), rounds=60)
    shown = [steps_in(picture)[1] for picture in page.pictures]
    starts = [number for number, steps in enumerate(shown) if steps == 0]
    assert len(starts) > 5
    assert all(shown[number - 1] == env.max_episode_steps for number in starts[1:])
    assert any("success in **3 of 3** episodes" in text for text in page.texts)
    assert any("agent=random" in text for text in page.texts)


def test_a_scene_moves_in_place_of_pictures(page: WatchedPage) -> None:
    env = SceneEnv(num_envs=2, max_episode_steps=7)
    scene = page.draw(env.scene())
    viewer, cart, places = viewer_of(page, env, scene=scene), scene._frames["cart"], []
    page.refresh = lambda: places.append(float(cart.position[0]))  # type: ignore[method-assign]
    play(viewer, rounds=40)
    assert page.pictures == []
    assert {0.0, 7.0} <= set(places)
    assert (scene._frames["cart/pole"].wxyz == (0, 0, 0, 1)).all()
    assert "return" in page.texts[-1]


def test_pictures_replace_a_scene_whose_mesh_cannot_be_read(
    demo: WatchedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = SceneEnv(num_envs=1, max_episode_steps=7).scene("mesh")
    monkeypatch.setattr("envs.gym.env.GymnasiumEnv.scene", lambda _: unread)
    settings, lines = settings_of(*CARTPOLE, *DEMO), list[str]()
    with pytest.raises(EndedError):
        show(settings, None, "a name", lines.append, lambda: None, _FRAME_SECONDS)
    assert len(demo.pictures) >= 1
    assert len(lines) == 2
    assert lines[1].startswith("the page shows pictures, not a scene: no_such_file.stl: trimesh ")


def test_a_pose_without_a_body_is_refused_in_one_line(page: WatchedPage) -> None:
    scene = SceneEnv(num_envs=1, max_episode_steps=7).scene()
    poses = {"cart": np.eye(4), "wheel": np.eye(4)}
    with pytest.raises(ConfigurationError, match="no body is named wheel"):
        page.draw(replace(scene, poses=lambda _: poses))


def test_bodies_without_a_new_pose_stay_where_they_are(page: WatchedPage) -> None:
    env = SceneEnv(num_envs=1, max_episode_steps=7)
    far, near = (np.eye(4) for _ in range(2))
    far[0, 3], near[0, 3] = 2.0, 1.0
    moves: list[dict[str, Pose]] = [{"cart": far, "cart/pole": near}, {"cart/pole": far}]
    moves += [{"cart": near}, {}, {"cart/pole": far, "cart": near}]
    scene = page.draw(replace(env.scene(), poses=lambda index: moves[index]))
    places = []
    for index in range(len(moves)):
        scene.move(index)
        places.append([scene._frames[name].position[0] for name in ("cart", "cart/pole")])
    assert places == [[2, 1], [2, 2], [1, 2], [1, 2], [1, 2]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time of the viewer, which passes in steps and pauses alone."""
    clock = Clock()
    monkeypatch.setattr("trainers.viewing.viewer.time", clock)
    return clock


@pytest.mark.parametrize(("draws_scene", "longest"), [(False, 0.25), (True, 1 / 30)])
@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.1])
def test_a_slow_simulation_is_drawn_as_often_as_a_fast_one(
    page: WatchedPage,
    clock: Clock,
    draws_scene: bool,
    longest: float,
    cost: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, times = SceneEnv(num_envs=1, max_episode_steps=1000), [0.0]
    viewer = viewer_of(page, env, scene=page.draw(env.scene()) if draws_scene else None)
    before_each(viewer.player, "step", lambda: clock.sleep(cost))
    monkeypatch.setattr(viewer, "_draw", lambda: times.append(clock.now))
    play(viewer, rounds=900)
    assert len(times) > 10
    assert max(np.diff(times)) < longest + cost + viewer.player.step_seconds


def test_an_episode_begins_after_the_pause(page: WatchedPage, env: DrawnEnv, clock: Clock) -> None:
    viewer, begun = viewer_of(page, env), list[float]()
    viewer.seconds_between = 2.0
    before_each(viewer.player, "begin", lambda: begun.append(clock.now))
    play(viewer, rounds=200)
    assert len(begun) > 2
    assert np.diff(begun) == pytest.approx(2.0 + 7 * viewer.player.step_seconds, abs=0.051)


def test_a_long_step_does_not_delay_a_pause(
    page: WatchedPage, env: DrawnEnv, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = viewer_of(page, env)
    viewer.player.step_seconds = 5.0
    sleep = clock.sleep

    def pause_after_a_second(seconds: float) -> None:
        sleep(seconds)
        page._paused.value = clock.now >= 1.0

    monkeypatch.setattr(clock, "sleep", pause_after_a_second)
    play(viewer, rounds=3)
    assert 1.0 <= clock.now < 1.2
    assert [steps_in(picture)[1] for picture in page.pictures] == [0, 1]


def test_another_environment_is_shown_from_the_start_of_an_episode(
    page: WatchedPage, env: DrawnEnv
) -> None:
    viewer = viewer_of(page, env)
    page._index.value = "2"
    play(viewer, rounds=20)
    assert steps_in(page.pictures[0]) == (2, 0)
    assert {steps_in(picture)[0] for picture in page.pictures} == {2}


def test_curves_of_a_long_episode_are_those_of_its_last_steps() -> None:
    env = DrawnEnv(num_envs=1, max_episode_steps=10**6)
    player = Player(env, policy_for(env), CPU)
    steps = MAX_STEPS + 3
    rewards = []
    for _ in range(steps):
        player.step()
        rewards.append(player.curves()["reward"][-1])
    curves = player.curves()
    assert {len(values) for values in curves.values()} == {MAX_STEPS}
    assert curves["seconds"][[0, -1]] == pytest.approx([0.004, 0.001 * steps])
    assert (curves["reward"] == rewards[3:]).all()
    assert player.episode_return == pytest.approx(sum(rewards))


def test_a_pause_shows_the_same_picture(page: WatchedPage, env: DrawnEnv) -> None:
    viewer = viewer_of(page, env)
    page._paused.value = True
    play(viewer, rounds=5)
    assert len(page.pictures) == 1


def test_the_newest_checkpoint_is_followed_and_others_can_be_chosen(
    page: WatchedPage, env: DrawnEnv, tmp_path: Path
) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    loaded: list[Path] = []
    viewer = viewer_of(page, env, tmp_path, loaded)
    play(viewer, rounds=12)
    assert loaded == []
    assert "untrained policy; the run has no checkpoint yet" in page.texts[-1]
    paths = [folder.prepare(1000 * n, {"n": n}, score=score)() for n, score in ((1, 2.0), (2, 1.0))]
    play(viewer, rounds=20)
    assert loaded == [paths[1]]
    assert "2,000 frames (newest)" in page.texts[-1]
    page.offer(WatchedCheckpoints(tmp_path).names())
    assert page._choice.options == (NEWEST, BEST, "2,000 frames", "1,000 frames")
    page._choice.value = BEST
    play(viewer, rounds=12)
    assert loaded[1:] == [paths[0]]


def test_a_checkpoint_that_was_deleted_stays_chosen(page: WatchedPage, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    folder.prepare(1000, {})()
    checkpoints = WatchedCheckpoints(tmp_path)
    assert checkpoints.find("1,000 frames") == folder.path(1000)
    page.add_controls(checkpoints.names(), "1,000 frames", 1, 1.0)
    folder.prepare(2000, {})()
    page.offer(checkpoints.names())
    assert page.controls.checkpoint == "1,000 frames"
    assert checkpoints.find(page.controls.checkpoint) is None


def test_the_first_choice_stands_in_for_one_that_the_page_does_not_offer(page: WatchedPage) -> None:
    page.add_controls(["first", "second"], "second", 2, 1.0)
    page._speed.value, page._index.value, page._choice.value = "fast", "7", "../first"
    page.offer(["first", "second"])
    assert page.controls == (False, 0.1, 0, "first")


def test_curves_are_those_of_the_metrics_file_while_it_grows(tmp_path: Path) -> None:
    curves = LearningCurves(tmp_path)
    assert curves.read() == {}
    logger = MetricLogger(tmp_path, ["csv"])
    for frames in range(0, 20_000, 10):
        logger.log(frames, {"episode/return": frames / 2, "seconds": 1.0})
    logger.log(20_000, {"evaluation/return": 7.0, "seconds": 1.0})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("20010,1")  # a row that is being written
    read = curves.read()
    assert list(read) == ["return"]  # no success in this environment
    rows, training, evaluation = read["return"]
    assert len(rows) <= 502
    assert rows[-1] == 20_000
    assert (training[:-1] == rows[:-1] / 2).all()
    assert np.isnan(evaluation[:-1]).all()
    assert evaluation[-1] == 7.0
    assert curves.read() == {}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (CARTPOLE, "agent=random env=gym"),
        (("checkpoint=pretrained:marinenav/ddpg", "demo.num_envs=2"), "pretrained:marinenav/ddpg"),
    ],
)
def test_the_demo_shows_a_policy_that_belongs_to_no_run(
    arguments: tuple[str, ...], name: str, demo: WatchedPage
) -> None:
    lines: list[str] = []
    settings = settings_of(*arguments, *DEMO)
    with pytest.raises(EndedError):
        show(settings, None, name, lines.append, lambda: lines.append("begins"), _FRAME_SECONDS)
    assert lines == [f"watch it at {demo.address}", "begins"]
    assert f"**{name}**" in demo.texts[-1]
    assert len(demo.pictures) >= 1
    assert all(len(np.unique(picture)) > 1 for picture in demo.pictures)


def test_the_demo_shows_an_exported_policy(tmp_path: Path, demo: WatchedPage) -> None:
    pytest.importorskip("onnxscript")
    short = ("evaluation.episodes=1", "env.max_episode_steps=5", f"runs={tmp_path}", "device=cpu")
    folder = run("mode=export", "checkpoint=pretrained:marinenav/dqn", *short).folder
    with pytest.raises(EndedError):
        run("mode=demo", "viewer=web", "viewer_port=0", f"policy={folder}", "device=cpu")
    assert f"**{folder}**" in demo.texts[-1]
    assert len(demo.pictures) >= 1


class BrightEnv(DrawnEnv):
    """Draws one color."""

    def render(self, index: Any = 0) -> Tensor:
        return torch.tensor(COLOR, dtype=torch.uint8).expand(300, 400, 3)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Page]:
    """Page of a viewer that plays in another thread, with learning curves of a run."""
    logger = MetricLogger(tmp_path, ["csv"])
    for frames in (1000, 2000):
        returns = {"episode/return": frames / 100, "episode/success": 0.5}
        logger.log(frames, {"seconds": 1.0, **returns})
    logger.log(2000, {"evaluation/return": 9.0, "evaluation/success": 0.7})
    page = Page("localhost", free_port("localhost", 0), "an arm")
    viewer = viewer_of(page, BrightEnv(num_envs=2, max_episode_steps=400), tmp_path)
    over = threading.Event()
    refresh = page.refresh

    def refresh_until_over() -> None:
        if over.is_set():
            raise EndedError
        refresh()

    def play() -> None:
        with pytest.raises(EndedError):
            viewer.run()

    page.refresh = refresh_until_over  # type: ignore[method-assign]
    thread = threading.Thread(target=play)
    thread.start()
    yield page
    over.set()
    thread.join()
    page.close()


def test_a_browser_draws_a_scene(tmp_path: Path) -> None:
    with closing(Page("localhost", free_port("localhost", 0), "an arm")) as page:
        page.draw(SceneEnv(num_envs=1, max_episode_steps=7).scene())
        with opened(page.address, tmp_path) as tab:
            tab.wait_for("document.body.innerText.includes('an arm')")
            end = time.monotonic() + 60
            red = (150, 0, 0), (255, 90, 90)
            while not ((tab.picture() >= red[0]) & (tab.picture() <= red[1])).all(2).sum() > 500:
                assert time.monotonic() < end, "no red box"


@pytest.mark.slow
def test_a_browser_shows_a_large_picture_texts_and_curves(served: Page, tmp_path: Path) -> None:
    with opened(served.address, tmp_path) as tab:
        for text in (
            *("an arm", "return", "success in", "Checkpoint", "Environment", "Pause"),
            *("reward over this episode", "return over the training", "success over the training"),
        ):
            tab.wait_for(f"document.body.innerText.includes({text!r})")
        tab.wait_for("document.querySelectorAll('.u-over').length === 3")
        end = time.monotonic() + 30
        while (np.abs(tab.picture().astype(int) - COLOR) < 12).all(2).mean() < 0.4:
            assert time.monotonic() < end, "the picture is small, or another one"
        asked = tab.evaluate("performance.getEntriesByType('resource').map(each => each.name)")
        assert all(name.startswith((served.address, "data:", "blob:")) for name in asked), asked
        # Settings of viser, which are hidden, have checkboxes too.
        tab.evaluate("[...document.querySelectorAll('input[type=checkbox]')].at(-1).click()")
        end = time.monotonic() + 30
        while not served.controls.is_paused:
            assert time.monotonic() < end, "the page does not tell that it pauses"
            time.sleep(0.05)
