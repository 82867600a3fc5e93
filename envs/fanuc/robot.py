"""Description of an arm, read from its URDF: joints, limits and collision bodies.

URDF: http://wiki.ros.org/urdf/XML. Lengths in metres, angles in radians.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pybullet_data
from numpy.typing import NDArray

from torchrl_gpu.checkpoints.files import reason
from torchrl_gpu.errors import ConfigurationError

MIN_JOINTS, MAX_JOINTS = 4, 8
MAX_REACH = 20.0  # m; a longer arm has its lengths in millimetres
MAX_TURNS = 10  # of a joint to either side; limits in degrees are beyond
ASSETS = Path(__file__).parent / "assets"
_SUPPLIED = Path(pybullet_data.getDataPath())

# Default radius [m] of the capsules that replace meshes and boxes, about that of the LR Mate's
# forearm.
BAR_RADIUS = 0.05

# Pairs of bodies closer than this in the chain are not checked: neighbours overlap by construction,
# and bodies two apart meet around the joint between them. The simulators ignore the same pairs.
MIN_BODIES_APART = 3

# Base and body 1 always touch the floor.
FIRST_BODY_ABOVE_FLOOR = 2

CONTROL_RATE = 60.0  # Hz, environment steps, the default
PHYSICS_RATE = 240.0  # Hz, the lowest rate of physics steps

# Fraction of the maximum speed at an action of 1. The margin covers the error of the solver, one or
# two percent after a sudden command.
SPEED_SHARE = 0.98

Array = NDArray[np.float64]


def substeps(control_rate: float) -> int:
    """Return the number of physics steps per environment step: four at 60 Hz."""
    return math.ceil(PHYSICS_RATE / control_rate)


@dataclass(frozen=True, eq=False)
class Capsule:
    """Capsule fixed to a body of the arm."""

    link: int  # index of the body; 0 for the base, i for the links that joint i moves
    start: Array  # of the axis `[3]`, in the frame of the body, metres
    end: Array  # of the axis `[3]`, in the frame of the body, metres
    radius: float  # metres


@dataclass(frozen=True, eq=False)
class Robot:
    """A serial arm of N revolute joints, 4 to 8.

    Links joined by fixed joints are one body: body 0 is the base, and joint i moves body i.
    The frame of a body is that of the child link of its joint. The arm reaches with its tool, a
    frame fixed to the last body; by default the frame of that body itself, the flange.
    """

    urdf: str  # path of the file
    origins: Array  # pose of each joint in the frame of the previous body, `[N, 4, 4]`
    axes: Array  # unit axis of each joint in its own frame, `[N, 3]`
    lower: Array  # lower limits of the joint angles `[N]`, rad
    upper: Array  # upper limits of the joint angles `[N]`, rad
    velocity: Array  # maximum joint speeds `[N]`, rad/s
    effort: Array  # maximum torques `[N]`, N m
    tool_link: str | None  # name of the link whose frame is the tool; None for the flange
    tool: Array  # position of the tool in the frame of the last body `[3]`, metres
    capsules: tuple[Capsule, ...]  # collision bodies, base first
    frames: tuple[str, ...]  # names of links without mass in bodies with a mass

    @property
    def num_joints(self) -> int:
        """Number of joints."""
        return len(self.axes)

    @property
    def reach(self) -> float:
        """Length of the outstretched chain from joint 1 to the tool, in metres.

        The value is an upper bound of the distance from joint 1 to the tool.
        """
        lengths = np.linalg.norm((*self.origins[1:, :3, 3], self.tool), axis=1)
        return float(lengths.sum())

    @property
    def shoulder(self) -> Array:
        """Origin of joint 1 in the base frame `[3]`, in metres."""
        return self.origins[0, :3, 3]

    def pose_map(self) -> Array:
        """Return the matrix that maps sines and cosines of the joint angles to link poses.

        By Rodrigues' formula, joint i rotates its link relative to the previous link by
            M_i = O_i (I + sin(q_i) K_i + (1 - cos(q_i)) K_i K_i),
        with O_i the fixed rotation of its origin and K_i the cross-product matrix of its axis. All
        relative poses are therefore affine functions of the sines and cosines, and one
        matrix product computes them:
            poses = [sines, cosines, 1] @ pose_map.

        Returns:
            Matrix `[2 N + 1, 16 N]`; the poses are `[N, 4, 4]`, flattened.
        """
        fixed = self.origins[:, :3, :3]
        cross = np.cross(self.axes[:, None], np.eye(3)[None]).transpose(0, 2, 1)
        count = self.num_joints
        joints = np.arange(count)
        result = np.zeros((2 * count + 1, count, 4, 4))
        result[joints, joints, :3, :3] = fixed @ cross
        result[count + joints, joints, :3, :3] = -fixed @ cross @ cross
        result[-1] = self.origins
        result[-1, :, :3, :3] += fixed @ cross @ cross
        return result.reshape(2 * count + 1, -1)

    @property
    def fingerprint(self) -> str:
        """Hash of the properties that determine the reachable positions."""
        digest = hashlib.sha256()
        for array in (self.origins, self.axes, self.lower, self.upper, self.tool):
            digest.update(array.tobytes())
        for capsule in self.capsules:
            digest.update(np.array([capsule.link, capsule.radius]).tobytes())
            digest.update(capsule.start.tobytes() + capsule.end.tobytes())
        return digest.hexdigest()


def load_robot(
    name: str = "lr_mate_200ic",
    urdf: str | None = None,
    tool: str | None = None,
    bar_radius: float = BAR_RADIUS,
) -> Robot:
    """Read an arm from its URDF.

    Fixed joints may occur anywhere.

    Args:
        name: name of an arm in this package; ignored if `urdf` is given.
        urdf: path of a URDF; one that does not exist is looked up among the files that come with
            PyBullet. None for the arm `name`.
        tool: link whose frame reaches the targets, fixed to the last body; None for the child link
            of the last joint.
        bar_radius: radius of the capsules that replace collision bodies other than capsules,
            cylinders and spheres, from one joint to the next, metres.

    Raises:
        ConfigurationError: the file is missing, is not a URDF, describes another kind of arm, or
            has no such tool.
    """
    path = Path(urdf) if urdf is not None else ASSETS / f"{name}.urdf"
    setting = f"env.robot={name}" if urdf is None else f"env.urdf={path}"
    if not path.exists() and (supplied := _SUPPLIED / path).exists():
        path = supplied
    try:
        return _parse(ElementTree.parse(path).getroot(), path, tool, bar_radius)
    except OSError as error:
        raise ConfigurationError(f"{setting}: cannot be read ({reason(error)})") from None
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"{setting}: is not XML ({error}); name a .urdf file") from None
    except _InvalidDescriptionError as error:
        raise ConfigurationError(f"{setting}: {error}") from None


class _InvalidDescriptionError(Exception):
    """Error in a URDF; the message follows the path of the file."""


def _parse(root: ElementTree.Element, path: Path, tool: str | None, bar_radius: float) -> Robot:
    if root.tag == "mujoco":
        raise _InvalidDescriptionError("is MJCF; fanuc reads URDF alone, env=lift_cube reads both")
    if root.tag != "robot":
        raise _InvalidDescriptionError(f"is not a URDF: its root is <{root.tag}>, not <robot>")
    for tag in ("link", "joint"):  # PyBullet crashes at equal names
        for name, count in Counter(each.get("name", "") for each in root.findall(tag)).items():
            if count > 1:
                raise _InvalidDescriptionError(f'needs one <{tag} name="{name}">, but has {count}')
    joints, places = _serial_chain(root)
    axes = np.array([_numbers(joint.find("axis"), "xyz", "1 0 0", 3) for joint in joints])
    weightless, frames = _weightless(root, {name: body for name, (body, _) in places.items()})
    names = [joint.get("name", "") for joint in joints]
    limits = [_require(joint, "limit") for joint in joints]
    lower, upper, velocity, effort = (
        np.array([_number(limit, key) for limit in limits])
        for key in ("lower", "upper", "velocity", "effort")
    )
    for wrong, rule in (
        (np.linalg.norm(axes, axis=1) == 0, "whose axis is not zero"),
        (lower >= upper, "with lower < upper"),
        (np.maximum(-lower, upper) > math.tau * MAX_TURNS, f"within {MAX_TURNS} turns, in radians"),
        (velocity <= 0, "with velocity > 0"),
        (effort <= 0, "with effort > 0"),
        (np.array([j.find("mimic") is not None for j in joints]), "without <mimic>"),
        (np.isin(np.arange(len(joints)) + 1, weightless), "that moves a mass > 0"),
    ):
        if wrong.any():
            raise _InvalidDescriptionError(f"needs a joint {names[wrong.argmax()]} {rule}")
    origins = np.stack([places[_link(joint, "parent")][1] @ _pose(joint) for joint in joints])
    last, flange = len(joints), _link(joints[-1], "child")
    body, pose = places.get(flange if tool is None else tool, (-1, np.eye(4)))
    if body != last:
        fixed = ", ".join(name for name, (index, _) in places.items() if index == last)
        raise _InvalidDescriptionError(f"has no env.tool={tool} behind its last joint, but {fixed}")
    robot = Robot(
        urdf=str(path.resolve()),
        origins=origins,
        axes=axes / np.linalg.norm(axes, axis=1, keepdims=True),
        lower=lower,
        upper=upper,
        velocity=velocity,
        effort=effort,
        tool_link=tool,
        tool=pose[:3, 3],
        capsules=tuple(_capsules(root, places, [*origins[:, :3, 3], pose[:3, 3]], bar_radius)),
        frames=frames,
    )
    if robot.reach > MAX_REACH:
        raise _InvalidDescriptionError(
            f"reaches {robot.reach:,.0f} m; write its lengths in metres, not in millimetres"
        )
    return robot


def _serial_chain(
    root: ElementTree.Element,
) -> tuple[list[ElementTree.Element], dict[str, tuple[int, Array]]]:
    """Return the moving joints from base to flange; and for each link its body and pose, by name.

    The pose `[4, 4]` is in the frame of the body.
    """
    all_joints = root.findall("joint")
    moving = [joint for joint in all_joints if joint.get("type") != "fixed"]
    found = ", ".join(f"{joint.get('name')} ({joint.get('type')})" for joint in moving) or "none"
    wrong = (
        f"needs {MIN_JOINTS} to {MAX_JOINTS} revolute joints in one serial chain, but its moving "
        f"joints are {found}"
    )
    advice = 'write type="fixed" for a gripper, type="revolute" with limits for continuous joints'
    right_number = MIN_JOINTS <= len(moving) <= MAX_JOINTS
    if not right_number or any(joint.get("type") != "revolute" for joint in moving):
        raise _InvalidDescriptionError(f"{wrong}; {advice}")
    below: dict[str, list[ElementTree.Element]] = {}
    for joint in all_joints:
        below.setdefault(_link(joint, "parent"), []).append(joint)
    children = [_link(joint, "child") for joint in all_joints]
    links = [link.get("name", "") for link in root.findall("link")]
    for name in (*below, *children):
        if name not in links:
            raise _InvalidDescriptionError(f"has no link {name}")
    places = {name: (0, np.eye(4)) for name in links if name not in children}
    if len(places) > 1:
        raise _InvalidDescriptionError(f"needs one base link, but has {', '.join(places)}")
    chain: list[ElementTree.Element] = []
    waiting = list(places)
    while waiting:
        name = waiting.pop()
        body, pose = places[name]
        for joint in below.get(name, []):
            child = _link(joint, "child")
            if child in places:
                raise _InvalidDescriptionError(f"needs one joint above link {child}")
            if joint not in moving:
                places[child] = body, pose @ _pose(joint)
            elif body == len(chain):
                chain.append(joint)
                places[child] = len(chain), np.eye(4)
            else:
                raise _InvalidDescriptionError(f"{wrong}, which are not one behind the other")
            waiting.append(child)
    for name in links:
        if name not in places:
            raise _InvalidDescriptionError(f"has no base link above {name}")
    return chain, places


def _weightless(
    root: ElementTree.Element, bodies: Mapping[str, int]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the bodies of mass 0, and the links that add no mass to their bodies.

    Such links lack `<inertial>`, which another link of their body has. PyBullet gives 1 kg to each
    link of a body whose links all lack it.
    """
    masses: dict[str, float] = {}
    for link in root.findall("link"):
        name, given = link.get("name", ""), link.find("inertial/mass")
        if given is not None:
            masses[name] = _number(given, "value")
            if masses[name] < 0:
                raise _InvalidDescriptionError(f"needs a link {name} without a negative mass")
    weighed = {bodies[name] for name in masses}
    heavy = {bodies[name] for name, mass in masses.items() if mass > 0}
    frames = (name for name, body in bodies.items() if body in weighed and name not in masses)
    return sorted(weighed - heavy), tuple(frames)


def _capsules(
    root: ElementTree.Element,
    places: Mapping[str, tuple[int, Array]],
    ends: Sequence[Array],
    bar_radius: float,
) -> Iterator[Capsule]:
    """Yield the collision bodies, base first; `ends` has the end of the bar of each body."""
    for link in sorted(root.findall("link"), key=lambda link: places[link.get("name", "")][0]):
        index, frame = places[link.get("name", "")]
        for element in link.findall("collision"):
            pose = frame @ _pose(element)
            geometry = next(iter(_require(element, "geometry")), None)
            if geometry is not None and geometry.tag in ("capsule", "cylinder", "sphere"):
                length = 0.0 if geometry.tag == "sphere" else _number(geometry, "length")
                half = pose[:3, 2] * length / 2
                yield Capsule(
                    index, pose[:3, 3] - half, pose[:3, 3] + half, _number(geometry, "radius")
                )
            else:
                yield Capsule(index, frame[:3, 3], ends[index], bar_radius)


def _pose(element: ElementTree.Element) -> Array:
    """Return the `<origin>` of an element as a matrix `[4, 4]`; the default is the identity."""
    origin = element.find("origin")
    roll, pitch, yaw = _numbers(origin, "rpy", "0 0 0", 3)
    cr, sr, cp, sp = math.cos(roll), math.sin(roll), math.cos(pitch), math.sin(pitch)
    cy, sy = math.cos(yaw), math.sin(yaw)
    pose = np.eye(4)
    # Fixed-axis roll, pitch, yaw: R = Rz(yaw) Ry(pitch) Rx(roll).
    pose[:3, :3] = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    pose[:3, 3] = _numbers(origin, "xyz", "0 0 0", 3)
    return pose


def _link(joint: ElementTree.Element, end: str) -> str:
    return _require(joint, end).get("link", "")


def _require(element: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = element.find(tag)
    if found is None:
        owner = element.get("name", "")
        raise _InvalidDescriptionError(f"lacks <{tag}> in <{element.tag}> {owner}".rstrip())
    return found


def _number(element: ElementTree.Element, key: str) -> float:
    return float(_numbers(element, key, "", 1)[0])


def _numbers(element: ElementTree.Element | None, key: str, default: str, count: int) -> Array:
    text = default if element is None else element.get(key, default)
    try:
        values = np.array([float(value) for value in text.split()])
    except ValueError:
        values = np.empty(0)
    if len(values) != count or not np.isfinite(values).all():
        tag = "origin" if element is None else element.tag
        raise _InvalidDescriptionError(f'needs {count} number(s) in {key}="{text}" of a <{tag}>')
    return values
