from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.fanuc.robot import ASSETS, load_robot
from torchrl_gpu.errors import ConfigurationError

DEGREES = np.pi / 180


@pytest.mark.parametrize(
    ("model", "lower", "upper", "velocity"),
    [
        (
            "lr_mate_200ic",
            [-170, -60, -142, -190, -120, -360],
            [170, 140, 230, 190, 120, 360],
            [350, 350, 400, 450, 450, 720],
        ),
        (
            "lr_mate_200id",
            [-170, -100, -70, -190, -125, -360],
            [170, 145, 205, 190, 125, 360],
            [450, 380, 520, 550, 545, 1000],
        ),
    ],
)
def test_limits_of_the_data_sheet(
    model: Any, lower: list[int], upper: list[int], velocity: list[int]
) -> None:
    robot = load_robot(model)
    for limits, degrees in ((robot.lower, lower), (robot.upper, upper), (robot.velocity, velocity)):
        np.testing.assert_allclose(limits, np.array(degrees) * DEGREES, atol=1e-5)


def test_lengths_and_torques_of_the_data_sheet() -> None:
    assert load_robot("lr_mate_200ic").reach == pytest.approx(0.075 + 0.3 + 0.075 + 0.32 + 0.08)
    robot = load_robot("lr_mate_200id")
    np.testing.assert_array_equal(robot.effort, [500, 500, 200, 70, 40, 20])


def test_every_link_has_a_collision_body() -> None:
    assert [c.link for c in load_robot().capsules] == list(range(7))


MOUNTED = """
<link name="world"/>
<link name="spacer"><collision><origin xyz="0 0 0.1"/>
  <geometry><sphere radius="0.03"/></geometry></collision></link>
<link name="tool"><collision><geometry><sphere radius="0.02"/></geometry></collision></link>
<joint name="a" type="fixed"><parent link="world"/><child link="base_link"/>
  <origin xyz="0 0 0.5"/></joint>
<joint name="b" type="fixed"><parent link="link_3"/><child link="spacer"/>
  <origin xyz="0.01 0 0"/></joint>
<joint name="c" type="fixed"><parent link="link_6"/><child link="tool"/>
  <origin xyz="0 0.1 0.2"/></joint>
</robot>"""


@pytest.fixture
def mounted(tmp_path: Path) -> str:
    """The arm on a stand, with a spacer between links 3 and 4, and a tool on the flange."""
    text = (ASSETS / "lr_mate_200ic.urdf").read_text()
    text = text.replace('<parent link="link_3"/>', '<parent link="spacer"/>')
    path = tmp_path / "mounted.urdf"
    path.write_text(text.replace("</robot>", MOUNTED))
    return str(path)


def test_links_joined_by_fixed_joints_are_one_body(mounted: str) -> None:
    plain, arm = load_robot(), load_robot(urdf=mounted)
    moved = arm.origins[:, :3, 3] - plain.origins[:, :3, 3]
    np.testing.assert_allclose(moved[0], [0, 0, 0.5])
    np.testing.assert_allclose(moved[3], [0.01, 0, 0])
    np.testing.assert_allclose(moved[[1, 2, 4, 5]], 0)
    np.testing.assert_allclose(arm.capsules[0].start - plain.capsules[0].start, [0, 0, 0.5])
    assert [capsule.link for capsule in arm.capsules] == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    np.testing.assert_allclose(arm.capsules[4].start, [0.01, 0, 0.1])


def test_a_tool_reaches_in_place_of_the_flange(mounted: str) -> None:
    flange, tool = load_robot(urdf=mounted), load_robot(urdf=mounted, tool="tool")
    np.testing.assert_allclose(tool.tool, [0, 0.1, 0.2])
    assert tool.reach == pytest.approx(flange.reach + np.hypot(0.1, 0.2))
    assert tool.fingerprint != flange.fingerprint
    with pytest.raises(ConfigurationError, match=r"has no env\.tool=hand .*but link_6, tool"):
        load_robot(urdf=mounted, tool="hand")


LOOP = """
<link name="x"/>
<joint name="a" type="fixed"><parent link="base_link"/><child link="x"/></joint>
<joint name="b" type="fixed"><parent link="x"/><child link="x"/></joint>
</robot>"""


@pytest.mark.parametrize(
    "settings",
    [{"urdf": "kuka_iiwa/model.urdf", "bar_radius": 0.04}, {"name": "lr_mate_200id"}],
)
def test_the_fingerprint_is_that_of_joints_and_collision_bodies(settings: dict[str, Any]) -> None:
    other = {key: value for key, value in settings.items() if key == "urdf"}
    assert load_robot(**settings).fingerprint == load_robot(**settings).fingerprint
    assert load_robot(**settings).fingerprint != load_robot(**other).fingerprint


def _edited(text: str) -> str:
    old, new = text.split(" => ")
    return (ASSETS / "lr_mate_200ic.urdf").read_text().replace(old, new)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not XML at all", r"is not XML \(.*\); name a \.urdf file"),
        ("<html></html>", "is not a URDF"),
        ("<mujoco/>", "is MJCF; fanuc reads URDF alone, env=lift_cube reads both"),
        ('<robot name="r"><link name="a"/></robot>', "4 to 8 revolute joints.*none; write"),
        (_edited('type="revolute" => type="prismatic"'), r"joint_1 \(prismatic\)"),
        (_edited('<parent link="link_5"/> => <parent link="link_4"/>'), "one behind the other"),
        (_edited('</robot> => <link name="loose"/></robot>'), "one base link.*base_link, loose"),
        (_edited('<child link="link_2"/> => <child link="arm"/>'), "has no link arm"),
        (
            _edited('<parent link="base_link"/> => <parent link="link_6"/>'),
            "no base link above link_1",
        ),
        (_edited(f"</robot> => {LOOP}"), "one joint above link x"),
        (_edited('velocity="6.108652" => velocity="0"'), "velocity > 0"),
        (_edited('velocity="6.108652" => speed="1"'), 'velocity=""'),
        (_edited('<axis xyz="0 0 1"/> => <axis xyz="0 0 0"/>'), "joint_1 whose axis is not zero"),
        (_edited('</joint> => <mimic joint="a"/></joint>'), "without <mimic>"),
        (_edited('<origin xyz="0 0 0.33" => <origin xyz="0 0 high"'), "0 0 high"),
        (_edited('joint name="joint_2" => joint name="joint_1"'), 'one <joint name="joint_1">.* 2'),
        (_edited('link name="link_2" => link name="link_1"'), 'one <link name="link_1">.* 2'),
        (_edited('<mass value="1"/> => <mass value="0"/>'), "joint_6 that moves a mass > 0"),
        (_edited('<mass value="7"/> => <mass value="-7"/>'), "base_link without a negative mass"),
        (_edited('lower="-6.283185" => lower="-360"'), "joint_6 within 10 turns, in radians"),
        (_edited('xyz="0 0 0.3" => xyz="0 0 300"'), "reaches 301 m; .* in metres, not in millim"),
    ],
)
def test_invalid_urdf_raises_a_one_line_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "arm.urdf"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_robot(urdf=str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_name_is_refused_by_its_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"^env.robot=lr_mate: cannot be read"):
        load_robot("lr_mate")
