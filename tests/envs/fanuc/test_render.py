from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pybullet_data
import pytest
import torch

from envs.fanuc import FanucEnv
from envs.fanuc.bullet import pybullet
from envs.fanuc.render import TARGET, ArmRenderer
from envs.fanuc.robot import load_robot
from envs.fanuc.targets import HOME
from torchrl_gpu.environments.scene import Shape
from torchrl_gpu.errors import ConfigurationError


@pytest.fixture
def renderer() -> Iterator[ArmRenderer]:
    renderer = ArmRenderer(load_robot(), width=160, height=120)
    yield renderer
    renderer.close()


def _share(frame: np.ndarray, low: tuple[int, int, int], high: tuple[int, int, int]) -> float:
    return float(((frame >= low) & (frame <= high)).all(-1).mean())


def test_image_contains_a_yellow_arm(renderer: ArmRenderer) -> None:
    frame = renderer.frame(HOME, (0.3, -0.4, 0.5))
    assert frame.shape == (120, 160, 3)
    assert frame.dtype == np.uint8
    assert 0.01 < _share(frame, (150, 100, 0), (255, 220, 60)) < 0.3


def test_image_contains_posture_target_and_trail(renderer: ArmRenderer) -> None:
    plain = renderer.frame(HOME, (0.3, -0.4, 0.5))
    assert (renderer.frame((1.0, *HOME[1:]), (0.3, -0.4, 0.5)) != plain).any(-1).mean() > 0.01
    assert (renderer.frame(HOME, (0.3, -0.4, 0.7)) != plain).any()
    trail = [(0.4, y / 50, 0.7) for y in range(10)]
    assert (renderer.frame(HOME, (0.3, -0.4, 0.5), trail) != plain).any()
    assert (renderer.frame(HOME, (0.3, -0.4, 0.5)) == plain).all(), "no trail remains"


def test_a_step_drawn_twice_keeps_its_trail_and_another_episode_or_arm_does_not(
    renderer: ArmRenderer,
) -> None:
    def follow(step: int, arm: int = 0) -> np.ndarray:
        return renderer.follow(arm, step, HOME, (0.3, -0.4, 0.5), (0.4, step / 20, 0.7))

    start, *_, last = (follow(step) for step in range(5))
    assert (last != start).any()
    assert (follow(4) == last).all()
    of_another = follow(5, arm=1)
    assert (of_another == renderer.frame(HOME, (0.3, -0.4, 0.5), [(0.4, 0.25, 0.7)])).all()
    assert (follow(0) == start).all()
    assert (follow(0) == start).all()


def test_target_is_visible_from_afar(renderer: ArmRenderer) -> None:
    without = renderer.frame(HOME, (0.0, 0.0, -5.0))
    reddish = (150, 0, 20), (255, 60, 100)
    assert _share(without, *reddish) == 0
    # Of 160 x 120 pixels, a sphere of the success radius alone would cover about 5.
    assert _share(renderer.frame(HOME, (0.5, 0.2, 0.3)), *reddish) > 40 / (160 * 120)
    behind_the_arm = renderer.frame(HOME, (-0.1, 0.1, 0.4))
    assert _share(behind_the_arm, *reddish) > 20 / (160 * 120)


@pytest.mark.parametrize(("success_radius", "reached"), [(0.015, ""), (2.0, ", reached")])
def test_caption_is_the_distance_and_whether_the_target_is_reached(
    success_radius: float, reached: str, make_env: Callable[..., FanucEnv]
) -> None:
    env = make_env(num_envs=2, success_radius=success_radius)
    env.reset()
    for arm in range(2):
        distance = 1000 * float((env.tool_position[arm] - env.target[arm]).norm())
        assert env.caption(arm) == f"distance {distance:.0f} mm{reached}"
        assert env.measurements(arm) == {"distance [mm]": pytest.approx(distance, rel=1e-3)}


def test_environment_renders_its_arms(make_env: Callable[..., FanucEnv]) -> None:
    env = make_env(num_envs=2)
    tensordict = env.reset()
    first = env.render(0)
    assert first.shape == (480, 640, 3)
    assert first.dtype == torch.uint8
    assert (env.render(1) != first).any()
    assert torch.equal(env.render(0), first)
    with pytest.raises(ConfigurationError, match=r"^render\(2\): .* environments 0 to 1$"):
        env.render(2)
    env.step(tensordict.set("action", torch.full((2, 6), 0.5)))
    assert (env.render(0) != first).any()


@pytest.mark.parametrize("urdf", [None, "kuka_iiwa/model.urdf"])
def test_the_scene_of_an_arm_covers_the_same_pixels_as_its_picture(
    urdf: str | None, make_env: Callable[..., FanucEnv]
) -> None:
    mesh_of = pytest.importorskip("trainers.viewing.scene").mesh_of
    env = make_env(num_envs=2, urdf=urdf)
    env.reset()
    for index in range(2):
        env.render(index)
        scene = env.scene()
        renderer = env._renderer
        view, projection = (
            np.reshape(matrix, (4, 4), order="F")
            for matrix in (renderer._view, renderer._projection)
        )
        *_, mask = renderer._client.getCameraImage(
            *(640, 480, renderer._view, renderer._projection), renderer=pybullet.ER_TINY_RENDERER
        )
        poses = {"base": np.eye(4), **scene.poses(index)}
        arm = [name for name in poses if name != TARGET]
        for body, names in ((renderer._arm, arm), (renderer._target, [TARGET])):
            points = []
            for name in names:
                for shape in scene.bodies[name]:
                    vertices = np.asarray(mesh_of(shape).vertices)
                    points.append(np.c_[vertices, np.ones(len(vertices))] @ _world(poses, name).T)
            x, y, _, w = projection @ view @ np.concatenate(points).T
            columns, rows = 320 * (1 + x / w), 240 * (1 - y / w)
            seen = np.argwhere(np.reshape(mask, (480, 640)) == body)
            found = [rows.min(), columns.min(), rows.max(), columns.max()]
            assert found == pytest.approx([*seen.min(0), *seen.max(0)], abs=3)


def test_a_mesh_has_the_unit_of_its_file() -> None:
    mesh_of = pytest.importorskip("trainers.viewing.scene").mesh_of
    pytest.importorskip("collada")
    file = Path(pybullet_data.getDataPath()) / "duck.dae"  # in centimetres
    duck = mesh_of(Shape("mesh", (1, 1, 2), (1, 1, 0), np.eye(4), str(file)))
    assert duck.extents == pytest.approx([1.655, 1.540, 2.305], abs=0.001)


def _world(poses: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return the pose of a body in the world, through those that it moves with."""
    outer, _, _ = name.rpartition("/")
    return _world(poses, outer) @ poses[name] if outer else poses[name]
