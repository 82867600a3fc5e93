"""The arm of the lift-cube task: model file, names of its parts, and postures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from torchrl_gpu.arguments import Configurable, checked
from torchrl_gpu.errors import ConfigurationError

Triple = Annotated[Sequence[float], Field(min_length=3, max_length=3)]
Names = Annotated[Sequence[str], Field(min_length=1)]


class Arm(Configurable):
    """An arm with a gripper of two fingers; the defaults describe the Franka Panda of Genesis.

    Args:
        file: MJCF (`.xml`) or URDF (`.urdf`) file of the arm; a path that does not exist is looked
            up among the assets of Genesis.
        joints: names of the joints of the arm, from base to hand.
        fingers: names of the two finger joints.
        hand: name of the link that carries the fingers; the wrist camera is mounted on it.
        pads: names of the two links that touch the cube in a grasp.
        grip_point: point between the finger tips in the frame of the hand, in metres.
        home: joint angles in rad at the start of an episode, with the hand pointing down; one for
            each joint.
        open_position: position of each finger joint of the open gripper, in metres or rad.
        closed_position: position of each finger joint of the closed gripper, in metres or rad.
        stiffness: position gain of each joint, then of each finger, above 0.
        damping: velocity gain of each joint, then of each finger, at least 0.
        max_force: maximum force or torque of each joint, then of each finger, above 0.
        workspace_low: lowest x, y and z of the grip point in metres.
        workspace_high: highest x, y and z of the grip point in metres.

    Raises:
        ConfigurationError: a setting is out of range, or numbers of names and values differ.
    """

    @checked
    def __init__(
        self,
        *,
        file: str = "xml/franka_emika_panda/panda.xml",
        joints: Names = tuple(f"joint{number}" for number in range(1, 8)),
        fingers: Annotated[Sequence[str], Field(min_length=2, max_length=2)] = (
            "finger_joint1",
            "finger_joint2",
        ),
        hand: str = "hand",
        pads: Annotated[Sequence[str], Field(min_length=2, max_length=2)] = (
            "left_finger",
            "right_finger",
        ),
        grip_point: Triple = (0.0, 0.0, 0.1034),
        home: Sequence[float] = (0.0, 0.3927, 0.0, -1.9635, 0.0, 2.3562, 0.7854),
        open_position: float = 0.04,
        closed_position: float = 0.0,
        stiffness: Sequence[Annotated[float, Field(gt=0)]] = (
            *(4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0),
            *(200.0, 200.0),
        ),
        damping: Sequence[Annotated[float, Field(ge=0)]] = (
            *(450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0),
            *(20.0, 20.0),
        ),
        max_force: Sequence[Annotated[float, Field(gt=0)]] = (
            *(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
            *(20.0, 20.0),
        ),
        workspace_low: Triple = (0.35, -0.25, 0.01),
        workspace_high: Triple = (0.75, 0.25, 0.4),
    ) -> None:
        if Path(file).suffix not in (".xml", ".urdf"):
            raise ConfigurationError(
                f"env.arm.file={file}: it has to be an MJCF file (.xml) or a URDF file (.urdf)"
            )
        actuators = len(joints) + len(fingers)
        for name, values, length in (
            ("home", home, len(joints)),
            ("stiffness", stiffness, actuators),
            ("damping", damping, actuators),
            ("max_force", max_force, actuators),
        ):
            if len(values) != length:
                raise ConfigurationError(
                    f"env.arm.{name}: {len(values)} values for {len(joints)} joints and "
                    f"{len(fingers)} fingers; it takes {length}"
                )
        if not all(low < high for low, high in zip(workspace_low, workspace_high, strict=True)):
            raise ConfigurationError("env.arm.workspace_low: it has to lie below workspace_high")
        self.file = file
        self.joints = tuple(joints)
        self.fingers = tuple(fingers)
        self.hand = hand
        self.pads = tuple(pads)
        self.grip_point = tuple(grip_point)
        self.home = tuple(home)
        self.open_position = open_position
        self.closed_position = closed_position
        self.stiffness = tuple(stiffness)
        self.damping = tuple(damping)
        self.max_force = tuple(max_force)
        self.workspace_low = tuple(workspace_low)
        self.workspace_high = tuple(workspace_high)


PANDA = Arm()
