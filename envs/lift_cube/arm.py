"""The arm of the lift-cube task: model file, names of its parts, and postures."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final
from xml.etree import ElementTree

from pydantic import Field

from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.checkpoints.files import reason
from torchrl_gpu.errors import ConfigurationError

ASSETS: Final = Path(__file__).parent / "assets"

Pair = tuple[str, str]
Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Arm(CheckedFields):
    """An arm with a gripper; the defaults describe the Franka Panda of Genesis.

    Args:
        file: MJCF (`.xml`) or URDF (`.urdf`) file of the arm; a path that does not exist is looked
            up among the assets of this environment and of Genesis.
        joints: names of the joints of the arm, from base to hand.
        fingers: names of all joints that move fingers: one of a moving jaw, two or more that one
            command opens and closes together, also if one of them mimics another.
        hand: name of the link that carries the fingers; the wrist camera is mounted on it.
        pads: names of the two links that touch the cube in a grasp; a fixed jaw belongs to a link
            as well, often to the hand.
        grip_point: point between the finger tips in the frame of the hand, in metres.
        home: joint angles in rad at the start of an episode, with the hand pointing down; one for
            each joint.
        open_position: position of each finger joint of the open gripper, in metres or rad; one
            number for all.
        closed_position: position of each finger joint of the closed gripper, in metres or rad; one
            number for all.
        stiffness: position gain of each joint, then of each finger, above 0.
        damping: velocity gain of each joint, then of each finger, at least 0.
        max_force: maximum force or torque of each joint, then of each finger, above 0.
        workspace_low: lowest x, y and z of the grip point in metres.
        workspace_high: highest x, y and z of the grip point in metres.

    Raises:
        ConfigurationError: a setting is out of range, numbers of names and values differ, both pads
            are one link, or the file does not exist or is neither MJCF nor URDF.
    """

    file: str = "xml/franka_emika_panda/panda.xml"
    joints: Names = tuple(f"joint{number}" for number in range(1, 8))
    fingers: Names = ("finger_joint1", "finger_joint2")
    hand: str = "hand"
    pads: Pair = ("left_finger", "right_finger")
    grip_point: Triple = (0.0, 0.0, 0.1034)
    home: tuple[float, ...] = (0.0, 0.3927, 0.0, -1.9635, 0.0, 2.3562, 0.7854)
    open_position: float | tuple[float, ...] = 0.04
    closed_position: float | tuple[float, ...] = 0.0
    stiffness: tuple[Positive, ...] = (
        *(4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0),
        *(200.0, 200.0),
    )
    damping: tuple[Annotated[float, Field(ge=0)], ...] = (
        *(450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0),
        *(20.0, 20.0),
    )
    max_force: tuple[Positive, ...] = (
        *(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
        *(20.0, 20.0),
    )
    workspace_low: Triple = (0.35, -0.25, 0.01)
    workspace_high: Triple = (0.75, 0.25, 0.4)

    def __post_init__(self) -> None:
        """Check the settings, also against each other, and the file."""
        setting = f"env.arm.file={self.file}"
        if Path(self.file).suffix not in (".xml", ".urdf"):
            raise ConfigurationError(f"{setting}: name an MJCF file (.xml) or a URDF file (.urdf)")
        try:
            if (path := find(self.file)) is not None:
                root = ElementTree.parse(path).getroot().tag
                if root not in ("mujoco", "robot"):
                    raise ConfigurationError(
                        f"{setting}: neither MJCF nor URDF: its root is <{root}>, not <mujoco> or "
                        "<robot>"
                    )
        except OSError as error:
            raise ConfigurationError(f"{setting}: cannot be read ({reason(error)})") from None
        except (ElementTree.ParseError, LookupError) as error:  # the latter: unknown encoding
            raise ConfigurationError(f"{setting}: is not XML ({error})") from None
        actuators = len(self.joints) + len(self.fingers)
        for name, values, length in (
            ("home", self.home, len(self.joints)),
            ("stiffness", self.stiffness, actuators),
            ("damping", self.damping, actuators),
            ("max_force", self.max_force, actuators),
            ("open_position", self.per_finger(self.open_position), len(self.fingers)),
            ("closed_position", self.per_finger(self.closed_position), len(self.fingers)),
        ):
            if len(values) != length:
                raise ConfigurationError(
                    f"env.arm.{name}: {len(values)} values for {len(self.joints)} joints and "
                    f"{len(self.fingers)} finger joints; it takes {length}"
                )
        if self.pads[0] == self.pads[1]:
            raise ConfigurationError(f"env.arm.pads: {self.pads[0]} twice; a grasp takes two links")
        limits = zip(self.workspace_low, self.workspace_high, strict=True)
        if not all(low < high for low, high in limits):
            raise ConfigurationError("env.arm.workspace_low: it must lie below workspace_high")

    def per_finger(self, position: float | Sequence[float]) -> Sequence[float]:
        """Return the position of each finger joint: `open_position` or `closed_position`."""
        return [position] * len(self.fingers) if isinstance(position, float) else position


def find(file: str) -> Path | None:
    """Return the path of the file of an arm; None if perhaps Genesis has it, once it is installed.

    Raises:
        ConfigurationError: the file does not exist.
    """
    genesis = find_spec("genesis")
    # Python takes any folder of that name for a package, whose spec then has no file.
    module = None if genesis is None else genesis.origin
    folders = [ASSETS] if module is None else [ASSETS, Path(module).parent / "assets"]
    path = next(filter(Path.is_file, (folder / file for folder in (Path(), *folders))), None)
    if path is None and module is not None:
        searched = " or ".join(map(str, folders))
        raise ConfigurationError(f"env.arm.file={file}: not found, nor below {searched}")
    return path


PANDA = Arm()
