import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.lift_cube import Arm, LiftCubeEnv
from envs.lift_cube.arm import find
from envs.lift_cube.inspection import examine
from envs.lift_cube.scene import Scene
from torchrl_gpu.errors import ConfigurationError
from trainers.run import settings_of


@pytest.fixture(scope="module")
def one_jaw() -> Iterator[LiftCubeEnv]:
    """Two arms with a moving jaw against a fixed one, from the preset."""
    arm = settings_of("experiment=lift_cube_one_jaw").env.arguments()["arm"]
    env = LiftCubeEnv(num_envs=2, arm=arm, cube_range=0.07, curriculum=1.0)
    yield env
    env.close()


def check_grasp(env: LiftCubeEnv, *place: float) -> Scene:
    """Let two arms close their grippers around a cube at a place and rise; return their scene."""
    simulation, grasp = env.simulation, torch.tensor([place]).expand(2, 3)
    joints, *_ = simulation.postures(grasp)
    env.reset()
    simulation.place(torch.ones(2, dtype=torch.bool), joints, grasp, torch.zeros(2))
    above = grasp + torch.tensor([0.0, 0.0, 0.1])
    for step in range(60):
        goal = grasp if step < 20 else above
        simulation.step(simulation.joints_towards(simulation.observe(), goal), -torch.ones(2, 1))
    scene = simulation.observe()
    assert scene.touches.all()
    assert (scene.cube[:, 2] > 0.08).all()
    return scene


def test_one_jaw_grasps_the_cube_and_lifts_it(one_jaw: LiftCubeEnv) -> None:
    shape = one_jaw.observation_spec["observation"].shape
    assert shape == (2, 5 + 5 + 1 + 1 + 3 * 3 + 2 + 3 * 2)
    check_grasp(one_jaw, 0.3, 0.0, 0.015)


def _slide(name: str, parent: str, child: str, axis: str, limits: str, more: str = "") -> str:
    return (
        f"<joint name='{name}' type='prismatic'><parent link='{parent}'/><child link='{child}'/>"
        f"<axis xyz='{axis}'/><limit {limits} effort='100' velocity='2'/>{more}</joint>"
    )


def _gantry() -> str:
    """Return the URDF of a gantry with two fingers, of which the right one follows the left one."""
    inertial = (
        "<inertial><mass value='0.2'/><inertia ixx='1e-3' iyy='1e-3' izz='1e-3' ixy='0' ixz='0' "
        "iyz='0'/></inertial>"
    )
    finger = "<collision><geometry><box size='0.02 0.01 0.08'/></geometry></collision>"
    bodies = {"rail": "", "bridge": "", "column": "", "hand": "", "left": finger, "right": finger}
    follows = "<mimic joint='left_slide' multiplier='1'/>"
    joints = (
        _slide("x", "rail", "bridge", "1 0 0", "lower='0.2' upper='0.6'"),
        _slide("y", "bridge", "column", "0 1 0", "lower='-0.3' upper='0.3'"),
        _slide("z", "column", "hand", "0 0 1", "lower='0.1' upper='0.6'"),
        _slide("left_slide", "hand", "left", "0 1 0", "lower='0' upper='0.03'", _at(0.01)),
        _slide(
            *("right_slide", "hand", "right", "0 -1 0", "lower='0' upper='0.03'"),
            _at(-0.01) + follows,
        ),
    )
    links = [f"<link name='{name}'>{inertial}{more}</link>" for name, more in bodies.items()]
    return f"<robot name='gantry'>{''.join((*links, *joints))}</robot>"


def _at(y: float) -> str:
    return f"<origin xyz='0 {y} -0.07'/>"


def test_a_finger_that_mimics_another_grasps_with_it(tmp_path: Path) -> None:
    file = tmp_path / "gantry.urdf"
    file.write_text(_gantry())
    gains = {"stiffness": (2000.0,) * 5, "damping": (200.0,) * 5, "max_force": (100.0,) * 5}
    arm = Arm(
        file=str(file),
        joints=("x", "y", "z"),
        fingers=("left_slide", "right_slide"),
        hand="hand",
        pads=("left", "right"),
        grip_point=(0.0, 0.0, -0.1),
        home=(0.4, 0.0, 0.3),
        open_position=0.03,
        workspace_low=(0.25, -0.2, 0.01),
        workspace_high=(0.55, 0.2, 0.4),
        **gains,
    )
    env = LiftCubeEnv(num_envs=2, arm=arm)
    left, right = check_grasp(env, 0.4, 0.1, 0.015).fingers.unbind(1)
    torch.testing.assert_close(left, right, atol=1e-3, rtol=0)
    env.close()


# A free base, a base with several joints, and a wrist at the end of a chain.
FREE = "<mujoco><worldbody><body name='a'><freejoint name='root'/><geom size='.1'/></body>" + (
    "</worldbody></mujoco>"
)
WHEELS = "<mujoco><worldbody><body name='a'><geom size='.1'/>{}</body></worldbody></mujoco>".format(
    "".join(
        f"<body name='{name}'><joint name='{name}' range='0 90' limited='true'/>"
        "<geom size='.1'/></body>"
        for name in ("one", "two")
    )
)
WRIST = "<mujoco><worldbody>{}{}</worldbody></mujoco>".format(
    "".join(
        f"<body name='{name}'><joint name='{name}' range='-180 180' limited='true'/>"
        "<geom size='.1'/>"
        for name in ("turn", "lift", "bend", "roll")
    ),
    "</body>" * 4,
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FREE, "no arm: its joint root moves in 6 ways"),
        (WHEELS, "no arm with a gripper.*the file has 0 before its fingers"),
        (WRIST, "no arm with a gripper: roll behind bend moves by 6.28 rad, more than a finger"),
    ],
)
def test_a_file_without_arm_or_gripper_has_no_draft(
    content: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "robot.xml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"^env\\.arm\\.file={file}: {words}"):
        examine({"arm": Arm(file=str(file))})


def test_a_draft_has_what_the_file_tells_and_no_values_of_another_arm(tmp_path: Path) -> None:
    file = tmp_path / "gantry.urdf"
    file.write_text(_gantry())
    examination = examine({"arm": Arm(file=str(file))})
    assert examination.picture is None
    _, _, command = examination.report.partition("\n\ntorchrl-gpu robot ")
    path, env, *arguments = shlex.split(command.replace("\\\n", ""))
    assert (path, env) == (str(file), "env=lift_cube")
    drafted = dict(argument.removeprefix("env.arm.").split("=") for argument in arguments)
    assert drafted == {
        "joints": "[x,y,z]",
        "fingers": "[left_slide,right_slide]",
        "hand": "hand",
        "pads": "[left,right]",
        "open_position": "[0.03,0.03]",
        "closed_position": "[0.0,0.0]",
        "stiffness": f"[{','.join(['100.0'] * 5)}]",
        "damping": f"[{','.join(['10.0'] * 5)}]",
        "max_force": f"[{','.join(['100.0'] * 5)}]",
        **dict.fromkeys(("home", "grip_point", "workspace_low", "workspace_high"), "???"),
    }


def test_reachable_positions_are_told_without_a_trace_in_the_episodes(
    one_jaw: LiftCubeEnv,
) -> None:
    def rollout(asked: bool) -> torch.Tensor:
        one_jaw.set_seed(5)
        one_jaw.reset()
        if asked:
            position = torch.tensor([[[0.3, 0.1, 0.2]], [[0.7, 0.0, 0.1]], [[0.3, 0.0, 0.9]]])
            assert one_jaw.is_reachable(position).tolist() == [[True], [False], [False]]
            assert one_jaw.is_reachable(position[:0]).shape == (0, 1)
        action = torch.full((2, 4), 0.3)
        steps = [one_jaw.step(one_jaw.observe().set("action", action)) for _ in range(3)]
        return torch.stack([step["next", "observation"] for step in steps])

    assert torch.equal(rollout(asked=True), rollout(asked=False))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"file": "arm.stl"}, "MJCF"),
        ({"file": "text.xml"}, r"env\.arm\.file=text\.xml: is not XML \(syntax error"),
        ({"file": "code.xml"}, r"code\.xml: is not XML \(unknown encoding: foo\)"),
        ({"file": "page.urdf"}, "its root is <html>, not <mujoco> or <robot>"),
        ({"home": (0.0, 1.0)}, "it takes 7"),
        ({"stiffness": (1.0,)}, "it takes 9"),
        ({"pads": ("hand",)}, "it takes 2 values"),
        ({"pads": ("hand", "hand")}, r"env\.arm\.pads: hand twice"),
        ({"grip_point": ()}, "it takes 3 values"),
        ({"workspace_low": (1.0, 0.0, 0.0)}, "below workspace_high"),
        ({"fingers": ()}, "at least 1 value"),
        ({"open_position": (0.04, 0.04, 0.04)}, "it takes 2"),
        ({"file": "nowhere/arm.xml"}, r"file=nowhere/arm\.xml: not found, nor below .*assets"),
    ],
)
def test_wrong_description_is_refused(
    settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.xml").write_text("arm")
    Path("code.xml").write_text("<?xml version='1.0' encoding='foo'?><mujoco/>")
    Path("page.urdf").write_text("<html/>")
    with pytest.raises(ConfigurationError, match=words):
        Arm(**settings)


def test_a_folder_named_genesis_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "genesis").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "genesis")
    assert find("xml/of_genesis.xml") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hand": "palm"}, "no link palm; it has: .*hand"),
        ({"pads": ("left", "right")}, "no link left"),
        ({"fingers": ("thumb", "finger_joint2")}, "no joint thumb; it has: .*finger_joint1"),
        (
            {"joints": ("joint1",), "home": (0.0,), "stiffness": 3 * (1.0,)}
            | {"damping": 3 * (1.0,), "max_force": 3 * (1.0,)},
            "further moving joints, joint2, .*joint7",
        ),
        ({"open_position": 0.1}, "^env.arm.open_position: 0.1 .* of finger_joint1, 0 to 0.04$"),
        ({"home": (0.0, 0.4, 0.0, 0.5, 0.0, 2.4, 0.8)}, "home: 0.5 is beyond .* of joint4"),
    ],
)
def test_what_the_arm_lacks_is_named_before_the_scene_is_built(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("genesis.Scene.build")
    with pytest.raises(ConfigurationError, match=words):
        LiftCubeEnv(num_envs=1, arm=Arm(**settings))
