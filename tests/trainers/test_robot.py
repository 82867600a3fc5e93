import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from envs.fanuc.robot import ASSETS
from envs.lift_cube.arm import ASSETS as JAW_ASSETS
from tests.helpers.program import Call
from trainers.run import settings_of

LR_MATE = ASSETS / "lr_mate_200ic.urdf"
JAW = "experiment=lift_cube_one_jaw"
BROKEN = "broken.xml"
JOINTLESS = "jointless.xml"


def test_an_arm_is_described_and_drawn_and_its_command_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("a=1, 'b' (c)") / "$d.urdf"
    file.parent.mkdir()
    file.write_bytes(LR_MATE.read_bytes())
    Path("$d.png").write_text("kept")
    report = program("robot", "env.home=[0,0,0,0,-1.57,0]", str(file)).report()
    assert report.startswith(f"{file}: an arm for the environment fanuc\n")
    assert "  1           -2.97        2.97          6.11       500.00" in report
    assert "[0.00,0.00,0.00,0.00,-1.57,0.00] rad, with a gap of" in report
    (share,) = (line.split()[1] for line in report.splitlines() if "  reachable" in line)
    assert 60 < int(share) < 90
    assert "  picture    $d_2.png" in report
    assert Path("$d.png").read_text() == "kept"
    image = np.asarray(Image.open("$d_2.png")).astype(int)
    is_blue = image[..., 2] - image[..., 0] > 60
    assert is_blue.mean() > 0.002  # reachable positions
    command = shlex.split(report.splitlines()[-1].removeprefix("  train it   "))
    assert command[:5] == ["python", "-m", "trainers.run", "agent=sac", "env=fanuc"]
    assert command[-1] == "env.home=[0,0,0,0,-1.57,0]"
    assert settings_of(*command[3:]).env.arguments()["urdf"] == str(file)


def test_an_arm_of_lift_cube_is_tried_and_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: Call
) -> None:
    picture = tmp_path / "arm.png"
    with caplog.at_level("INFO"):
        report = program("robot", JAW, f"picture={picture}").report()
    assert "this can take a minute" in caplog.text
    assert "  reachable  100 % of the workspace" in report
    assert "  trial      lifts 16 of 16 cubes" in report
    assert report.endswith("python -m trainers.run experiment=lift_cube_one_jaw\n")
    image = np.asarray(Image.open(picture)).astype(int)
    is_blue = image[..., 2] - image[..., 0] > 60
    assert is_blue.mean() > 0.002  # reachable positions


def test_an_arm_without_a_description_gets_a_draft_that_can_be_typed(program: Call) -> None:
    file = JAW_ASSETS / "one_jaw.xml"
    report = program("robot", str(file)).report()
    assert "links      base, turret, upper_arm" in report
    command = shlex.split(report[report.index("torchrl-gpu robot") :].replace("\\\n", ""))
    assert "env.arm.joints=[pan,shoulder,elbow,pitch,roll]" in command
    assert "env.arm.pads=[hand,jaw]" in command
    assert program("robot", *command[2:]).refusal().startswith("env.arm.home=???")
    known = [argument for argument in command[2:] if not argument.endswith("=???")]
    measured = (
        *("env.arm.home=[0,0,0,0,0]", "env.arm.grip_point=[0,0,0.085]", "env.cube_range=0.02"),
        *("env.arm.workspace_low=[0.35,-0.25,0.01]", "env.arm.workspace_high=[0.75,0.25,0.4]"),
    )
    ended = program("robot", *known, *measured)
    assert ended.code == 2
    assert "env.cube_range=0.02: the gripper gets no nearer" in ended.error


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "a robot file is missing"),
        (("missing.urdf",), "env.urdf=missing.urdf: cannot be read (No such file"),
        (("kuka_iiwa/model.urdf", "env.tool=hand"), "has no env.tool=hand behind its last joint"),
        ((__file__,), "name a .urdf file, or a .xml file"),
        ((str(LR_MATE), "env=gym"), "env=gym: choose one of: fanuc, lift_cube"),
        ((str(LR_MATE), "env.tool=hand"), "has no env.tool=hand behind its last joint, but link_6"),
        ((str(LR_MATE), "env.tool="), "has no env.tool= behind its last joint, but link_6"),
        ((str(LR_MATE), "env.bar_radius=inf"), "env.bar_radius=inf: input should be a finite"),
        ((str(LR_MATE), "env.home=[0,0]"), "env.home=[0.0, 0.0]: the arm has 6 joints"),
        ((str(LR_MATE), "env.home=[0,2.4,0,0,0,0]"), "has to be above 20 mm"),
        ((str(LR_MATE), "env.home=[4,0,0,0,0,0]"), "4 is beyond the limits of joint 1, -2.967 to"),
        ((str(LR_MATE), "env.home=[nan,0,0,0,0,0]"), "input should be a finite number"),
        ((str(LR_MATE), "picture=arm.jpg"), "picture=arm.jpg: name a .png file"),
        ((str(LR_MATE), "picture=/proc/none/arm.png"), "picture=/proc/none/arm.png: this folder"),
        ((str(LR_MATE), "picture=kept.png"), "picture=kept.png: it exists; choose another file"),
        ((str(LR_MATE), "picture=a.png", "picture=b.png"), "picture=b.png: leave one of them out"),
        ((str(LR_MATE), "seed=1", "seed=2"), "error: seed=1 seed=2: leave one of them out"),
        ((str(LR_MATE), str(LR_MATE)), "name one robot file"),
        (("experiment=fanuc/sac",), "write env=fanuc agent=sac, which select this preset"),
        ((BROKEN, "env=fanuc"), "broken.xml: is not XML"),
        ((JOINTLESS, "env=fanuc"), "is MJCF; fanuc reads URDF alone, env=lift_cube reads both"),
        ((BROKEN,), "error: env.arm.file=broken.xml: is not XML"),
        ((JAW, "env.arm.home=[0,0.35,0.191,-0.341,0]"), "the hand leans by 11 degrees"),
        ((JAW, "env.arm.home=[0.0,0.8,0.9,-1.7,0.0]"), "hand, jaw on the floor"),
        ((JOINTLESS,), "no arm with a gripper: it needs 3 or more joints"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    arguments: Sequence[str], line: str, tmp_path: Path, program: Call
) -> None:
    (tmp_path / "kept.png").touch()
    (tmp_path / BROKEN).write_text("<mujoco>")
    (tmp_path / JOINTLESS).write_text(
        "<mujoco><worldbody><body name='a'><geom size='.1'/></body></worldbody></mujoco>"
    )
    ended = program("robot", *arguments)
    assert (ended.code, ended.out) == (2, "")
    *before, error = ended.err.splitlines()
    assert error.startswith("error: ")
    assert line in error
    assert all("shell" in other for other in before)  # Genesis says which it runs in


def test_a_mesh_that_does_not_exist_ends_in_one_line_after_those_of_pybullet(
    tmp_path: Path, program: Call
) -> None:
    shape = '<capsule radius="0.1" length="0.1"/>'
    file = tmp_path / "arm.urdf"
    file.write_text(LR_MATE.read_text().replace(shape, '<mesh filename="none.stl"/>'))
    ended = program("robot", str(file))
    assert ended.code == 2
    assert ended.err.endswith("PyBullet cannot load this file; check that its meshes exist\n")
    assert "Traceback" not in ended.err
