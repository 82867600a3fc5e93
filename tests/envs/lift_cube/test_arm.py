from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.lift_cube import Arm, LiftCubeEnv
from torchrl_gpu.errors import ConfigurationError
from trainers.run import settings_of


@pytest.fixture(scope="module")
def one_jaw() -> Iterator[LiftCubeEnv]:
    """Two arms with a moving jaw against a fixed one, from the preset."""
    arm = settings_of("experiment=lift_cube_one_jaw").env.arguments()["arm"]
    env = LiftCubeEnv(num_envs=2, arm=arm, cube_range=0.07, curriculum=1.0)
    yield env
    env.close()


def test_one_jaw_grasps_the_cube_and_lifts_it(one_jaw: LiftCubeEnv) -> None:
    simulation, grasp = one_jaw.simulation, torch.tensor([[0.3, 0.0, 0.015]]).expand(2, 3)
    joints, *_ = simulation.postures(grasp)
    state = one_jaw.reset()
    assert state["observation"].shape == (2, 5 + 5 + 1 + 1 + 3 * 3 + 2 + 3 * 2)
    simulation.place(torch.ones(2, dtype=torch.bool), joints, grasp, torch.zeros(2))
    above = grasp + torch.tensor([0.0, 0.0, 0.1])
    for step in range(60):
        scene = simulation.observe()
        goal = grasp if step < 20 else above
        simulation.step(simulation.joints_towards(scene, goal), -torch.ones(2, 1))
    scene = simulation.observe()
    assert scene.touches.all()
    assert (scene.cube[:, 2] > 0.08).all()


def test_reachable_positions_are_told_without_a_trace_in_the_episodes(
    one_jaw: LiftCubeEnv,
) -> None:
    def rollout(asked: bool) -> torch.Tensor:
        one_jaw.set_seed(5)
        one_jaw.reset()
        if asked:
            position = torch.tensor([[[0.3, 0.1, 0.2]], [[0.7, 0.0, 0.1]], [[0.3, 0.0, 0.9]]])
            assert one_jaw.is_reachable(position).tolist() == [[True], [False], [False]]
        action = torch.full((2, 4), 0.3)
        steps = [one_jaw.step(one_jaw.observe().set("action", action)) for _ in range(3)]
        return torch.stack([step["next", "observation"] for step in steps])

    assert torch.equal(rollout(asked=True), rollout(asked=False))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"file": "arm.stl"}, "MJCF"),
        ({"home": (0.0, 1.0)}, "it takes 7"),
        ({"stiffness": (1.0,)}, "it takes 9"),
        ({"pads": ("hand",)}, "it takes 2 values"),
        ({"grip_point": ()}, "it takes 3 values"),
        ({"workspace_low": (1.0, 0.0, 0.0)}, "below workspace_high"),
        ({"fingers": ()}, "at least 1 value"),
        ({"open_position": (0.04, 0.04, 0.04)}, "it takes 2"),
    ],
)
def test_wrong_description_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Arm(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"file": "nowhere/arm.xml"}, "not found"),
        ({"hand": "palm"}, "no link palm; it has: .*hand"),
        ({"pads": ("left", "right")}, "no link left"),
        ({"fingers": ("thumb", "finger_joint2")}, "no joint thumb; it has: .*finger_joint1"),
        (
            {"joints": ("joint1",), "home": (0.0,), "stiffness": 3 * (1.0,)}
            | {"damping": 3 * (1.0,), "max_force": 3 * (1.0,)},
            "further moving joints, joint2, .*joint7",
        ),
    ],
)
def test_parts_that_the_file_lacks_are_named(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LiftCubeEnv(num_envs=1, arm=Arm(**settings))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("open_position", 0.1, "0.1 is beyond the limits of finger_joint1, 0 to 0.04"),
        ("home", (0.0, 0.4, 0.0, 0.5, 0.0, 2.4, 0.8), "0.5 is beyond the limits of joint4"),
    ],
)
def test_positions_beyond_the_limits_are_refused(
    setting: str, value: Any, words: str, lift: LiftCubeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lift.simulation, "arm", Arm(**{setting: value}))
    with pytest.raises(ConfigurationError, match=rf"^env\.arm\.{setting}: {words}"):
        lift.simulation._check_positions(slice(7, 9))
