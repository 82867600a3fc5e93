import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.camera import WristCamera, choose
from tests.helpers.genesis import ERROR_CHECKS, traffic_of_10_steps
from tests.stand_in import MAKERS, missing, stand_in_accelerator
from torchrl_gpu.errors import ConfigurationError

SIZE = 32


@pytest.fixture(scope="module")
def seen() -> Iterator[Callable[..., LiftCubeEnv]]:
    """Build environments with images of their wrist cameras; equal arguments share one."""
    built: dict[tuple[int, str], LiftCubeEnv] = {}

    def build(num_envs: int, renderer: Any) -> LiftCubeEnv:
        if (num_envs, renderer) not in built:
            camera = WristCamera(renderer=renderer, size=SIZE)
            try:
                built[num_envs, renderer] = LiftCubeEnv(
                    num_envs=num_envs, pixels=True, camera=camera, curriculum=0.0, seed=5
                )
            except ConfigurationError as error:  # without a device to draw on
                pytest.skip(str(error))
        return built[num_envs, renderer]

    yield build
    for env in built.values():
        env.close()


def _images(env: LiftCubeEnv) -> Tensor:
    env.set_seed(11)
    root = env.reset()
    action = torch.zeros(env.num_envs, 4)
    action[:, 2] = -0.5
    step, _ = env.step_and_maybe_reset(root.set("action", action))
    return step["next", "pixels"]


@pytest.mark.parametrize(("num_envs", "renderer"), [(1, "auto"), (2, "batched")])
def test_images_are_bytes_of_the_size_of_the_camera(
    seen: Callable[..., LiftCubeEnv], num_envs: int, renderer: str
) -> None:
    images = _images(seen(num_envs, renderer))
    assert images.shape == (num_envs, 3, SIZE, SIZE)
    assert images.dtype == torch.uint8


def test_every_way_to_draw_gives_the_same_images(seen: Callable[..., LiftCubeEnv]) -> None:
    batched, sequential = (_images(seen(2, way)).int() for way in ("batched", "sequential"))
    assert (batched - sequential).abs().float().mean() < 0.5
    assert (batched[0] - batched[1]).abs().max() > 100  # two cubes in two places


def test_cube_is_in_sight_and_not_among_the_other_observations(
    seen: Callable[..., LiftCubeEnv],
) -> None:
    env = seen(2, "batched")
    red = _images(env).int()
    is_red = (red[:, 0] > 120) & (red[:, 1] < 80) & (red[:, 2] < 80)
    assert is_red.flatten(1).any(-1).all()
    width = env.observation_spec["observation"].shape[-1]
    before = env.observe()["observation"]
    env.simulation.cube.set_pos(env.cube + 0.05)
    assert torch.equal(env.observe()["observation"], before)
    assert width == before.shape[-1]


def _drawn_anew(env: LiftCubeEnv) -> Tensor:
    """Return images of the scene as it is, with nothing left of an earlier drawing."""
    env.simulation.scene.visualizer.reset()
    return env.simulation.images(torch.zeros(env.num_envs, 3))


@pytest.mark.parametrize("renderer", ["batched", "sequential"])
def test_the_first_image_of_an_episode_shows_its_start(
    seen: Callable[..., LiftCubeEnv], renderer: str
) -> None:
    env = seen(2, renderer)
    root = env.reset()
    assert torch.equal(root["pixels"], _drawn_anew(env))
    down = torch.tensor([0.0, 0.0, -0.5, 1.0]).expand(2, 4)
    for _ in range(3):
        _, root = env.step_and_maybe_reset(root.set("action", down))
    before = root["pixels"].clone()
    mask = torch.tensor([[False], [True]])
    env.reset(TensorDict({"_reset": mask}, [2]))
    again = env.observe()["pixels"]
    assert torch.equal(again, _drawn_anew(env))
    assert torch.equal(again[0], before[0])
    assert not torch.equal(again[1], before[1])


def test_an_automatic_reset_draws_the_new_episodes_alone(
    seen: Callable[..., LiftCubeEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = seen(2, "batched")
    action = torch.tensor([0.0, 0.5, 0.5, 1.0]).expand(2, 4)
    env.reset()
    _, root = env.step_and_maybe_reset(env.observe().set("action", action))
    env.reset(TensorDict({"_reset": torch.tensor([[True], [False]])}, [2]))
    root = env.observe().set("action", action)
    state = env.state_dict()
    endless, kept = env.step_and_maybe_reset(root.clone())
    env.load_state_dict(state)
    monkeypatch.setattr(env, "max_episode_steps", 2)
    drawn: list[int] = []
    renderer = importlib.import_module("genesis.ext.pyrender.renderer").Renderer
    draw = renderer._forward_pass

    def count(*args: Any, **options: Any) -> Any:
        drawn.append(options["env_idx"])
        return draw(*args, **options)

    monkeypatch.setattr(renderer, "_forward_pass", count)
    step, root = env.step_and_maybe_reset(root)
    assert drawn == [0, 1, 1]  # both after the step, and the new episode
    assert step["next", "truncated"].flatten().tolist() == [False, True]
    assert torch.equal(step["next", "pixels"], endless["next", "pixels"])
    assert torch.equal(root["pixels"][0], kept["pixels"][0])
    assert not torch.equal(root["pixels"][1], kept["pixels"][1])
    assert torch.equal(root["pixels"], _drawn_anew(env))


@pytest.mark.parametrize(
    ("renderer", "backend", "has_madrona", "way"),
    [
        ("auto", "cpu", False, "batched"),
        ("auto", "amdgpu", True, "batched"),
        ("auto", "cuda", False, "batched"),
        ("auto", "cuda", True, "madrona"),
        ("sequential", "cuda", True, "sequential"),
    ],
)
def test_auto_takes_the_fastest_way_of_the_machine(
    renderer: Any, backend: str, has_madrona: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found" if has_madrona else None)
    assert choose(renderer, backend) == way
    if backend != "amdgpu":
        settings = {"pixels": True, "camera": WristCamera(renderer=renderer)}
        capabilities = LiftCubeEnv.capabilities_of(settings, torch.device(backend))
        assert capabilities.units["pixels"] == f"RGB, drawn by {way}"


@pytest.mark.parametrize(("backend", "words"), [("cpu", "NVIDIA"), ("cuda", "gs-madrona")])
def test_a_way_that_the_machine_lacks_is_refused(
    backend: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=words):
        choose("madrona", backend)


@pytest.mark.parametrize("brightness", [(0.0, 1.0), (2.0, 1.0)])
def test_wrong_brightness_is_refused(brightness: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="lowest, highest"):
        WristCamera(brightness=brightness)


@pytest.fixture(scope="module")
def stacked() -> Iterator[LiftCubeEnv]:
    """Two environments that observe stacks of three images of the collision bodies."""
    camera = WristCamera(size=SIZE, geometry="collision", brightness=(0.5, 1.5), shift=0.01)
    env = LiftCubeEnv(num_envs=2, pixels=True, frame_stack=3, camera=camera, seed=5)
    yield env
    env.close()


def _frames(observation: TensorDictBase) -> Tensor:
    """Return the images of all stacks `[N, frames, 3, H, W]`."""
    return observation["pixels"].unflatten(1, (3, 3))


def test_images_are_the_same_from_positions_on_a_device_without_float64(
    stacked: LiftCubeEnv,
) -> None:
    cameras, hand = stacked.simulation.cameras, stacked.simulation.hand
    assert cameras is not None
    place = hand.get_pos(), hand.get_quat(), torch.zeros(2, 3)
    expected = cameras.wrist_images(*place)
    reason = missing()
    if reason:
        pytest.skip(reason)
    with stand_in_accelerator(MAKERS["mps"]) as device:
        images = cameras.wrist_images(*(tensor.to(device) for tensor in place))
    assert torch.equal(images, expected)


def test_stack_holds_the_last_images_of_the_episode(stacked: LiftCubeEnv) -> None:
    root = stacked.reset()
    first = _frames(root)
    assert torch.equal(first[:, 0], first[:, 2])
    up = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(2, 4)
    step, _ = stacked.step_and_maybe_reset(root.set("action", up))
    second = _frames(step["next"])
    assert torch.equal(second[:, :2], first[:, 1:])
    assert not torch.equal(second[:, 2], first[:, 2])
    stacked.reset(TensorDict({"_reset": torch.tensor([[False], [True]])}, [2]))
    again = stacked.observe()
    assert torch.equal(_frames(again)[0], second[0])
    assert torch.equal(_frames(again)[1, 0], _frames(again)[1, 2])
    assert stacked.capabilities.frame_stacks == {"pixels": 3}


def test_state_restores_stacks_and_the_conditions_of_the_camera(stacked: LiftCubeEnv) -> None:
    root = stacked.reset()
    state = stacked.state_dict()
    action = torch.full((2, 4), 0.5)
    expected, _ = stacked.step_and_maybe_reset(root.set("action", action))
    stacked.load_state_dict(state)
    stacked.reset()  # leaves the loaded state as it is
    stacked.load_state_dict(state)
    step, _ = stacked.step_and_maybe_reset(stacked.observe().set("action", action))
    assert torch.equal(step["next", "pixels"], expected["next", "pixels"])


def test_images_cost_two_host_reads_per_step_and_those_of_the_rasterizer(
    stacked: LiftCubeEnv,
) -> None:
    traffic = traffic_of_10_steps(stacked)
    ours = sum(n for event, n in traffic.events.items() if "lift_cube" in event.place)
    assert ours == 20, traffic.report()
    # In each of 12 drawings, Genesis reads positions and rotations of the collision bodies and of
    # the other bodies, and twice the pose of the camera, which it has copied to the device.
    assert traffic.host_reads - ours == ERROR_CHECKS + 12 * 6, traffic.report()
    assert traffic.copies_to_device == 12 * 2, traffic.report()


def test_a_switch_to_demonstrations_adds_no_camera_that_draws_them(stacked: LiftCubeEnv) -> None:
    stacked.set_mode("demo")
    with pytest.raises(ConfigurationError, match="only in mode=demo"):
        stacked.render()
    stacked.set_mode("train")


def test_only_the_cube_is_coloured_among_collision_bodies(stacked: LiftCubeEnv) -> None:
    images = _frames(stacked.reset())[:, -1].int()
    red, green, blue = images.unbind(1)
    saturated = images.amax(1) - images.amin(1) > 60
    is_cube = (red - green > 40) & (red - blue > 40)  # its edges blend with what is behind
    assert is_cube.any()
    assert not (saturated & ~is_cube).any()


@pytest.mark.parametrize(
    "settings",
    [{"frame_stack": 2}, {"camera": WristCamera(shift=0.01)}],
    ids=["frame_stack", "camera"],
)
def test_a_setting_of_images_without_images_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"add env\.pixels=true"):
        LiftCubeEnv(**settings)
