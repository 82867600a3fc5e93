"""Description of an arm, read from its URDF: joints, limits and collision bodies.

URDF: http://wiki.ros.org/urdf/XML. Lengths in metres, angles in radians.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from torchrl_gpu.errors import ConfigurationError

NUM_JOINTS = 6
ASSETS = Path(__file__).parent / "assets"

# Bodies other than capsules, cylinders and spheres, such as meshes, are replaced by a capsule of
# this radius [m] from one joint to the next, about the thickness of these arms' forearm.
BAR_RADIUS = 0.05

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Capsule:
    """Capsule fixed to a link.

    Attributes:
        link: index of the link; 0 for the base, i for the link that joint i moves.
        start: start of the axis `[3]`, in the frame of the link, metres.
        end: end of the axis `[3]`, in the frame of the link, metres.
        radius: radius, metres.
    """

    link: int
    start: Array
    end: Array
    radius: float


@dataclass(frozen=True, eq=False)
class Robot:
    """A serial arm of six revolute joints. Its flange is the frame of the last link.

    Attributes:
        urdf: path of the URDF.
        origins: pose of each joint in the frame of the previous link, `[6, 4, 4]`.
        axes: unit axis of each joint in its own frame, `[6, 3]`.
        lower: lower limits of the joint angles `[6]`, rad.
        upper: upper limits of the joint angles `[6]`, rad.
        velocity: maximum joint speeds `[6]`, rad/s.
        effort: maximum torques `[6]`, N m.
        capsules: collision bodies, base first.
    """

    urdf: str
    origins: Array
    axes: Array
    lower: Array
    upper: Array
    velocity: Array
    effort: Array
    capsules: tuple[Capsule, ...]

    @property
    def reach(self) -> float:
        """Length of the outstretched chain from joint 1 to the flange, in metres.

        The value is an upper bound of the distance from joint 1 to the flange.
        """
        return float(np.linalg.norm(self.origins[1:, :3, 3], axis=1).sum())

    @property
    def shoulder(self) -> Array:
        """Origin of joint 1 in the base frame `[3]`, in metres."""
        return self.origins[0, :3, 3]

    def pose_map(self) -> Array:
        """Return the matrix that maps sines and cosines of the joint angles to link poses.

        By Rodrigues' formula, joint i rotates its link relative to the previous link by
            M_i = O_i (I + sin(q_i) K_i + (1 - cos(q_i)) K_i K_i),
        with O_i the fixed rotation of its origin and K_i the cross-product matrix of its axis. All
        relative poses are therefore affine functions of the twelve sines and cosines, and one
        matrix product computes them:
            poses = [sines, cosines, 1] @ pose_map.

        Returns:
            Matrix `[13, 96]`; the poses are `[6, 4, 4]`, flattened.
        """
        fixed = self.origins[:, :3, :3]
        cross = np.cross(self.axes[:, None], np.eye(3)[None]).transpose(0, 2, 1)
        joints = np.arange(NUM_JOINTS)
        result = np.zeros((2 * NUM_JOINTS + 1, NUM_JOINTS, 4, 4))
        result[joints, joints, :3, :3] = fixed @ cross
        result[NUM_JOINTS + joints, joints, :3, :3] = -fixed @ cross @ cross
        result[-1] = self.origins
        result[-1, :, :3, :3] += fixed @ cross @ cross
        return result.reshape(2 * NUM_JOINTS + 1, -1)

    @property
    def fingerprint(self) -> str:
        """Hash of the properties that determine the reachable positions."""
        digest = hashlib.sha256()
        for array in (self.origins, self.axes, self.lower, self.upper):
            digest.update(array.tobytes())
        for capsule in self.capsules:
            digest.update(np.array([capsule.link, capsule.radius]).tobytes())
            digest.update(capsule.start.tobytes() + capsule.end.tobytes())
        return digest.hexdigest()


def load_robot(name: str = "lr_mate_200ic", urdf: str | None = None) -> Robot:
    """Read an arm from its URDF.

    Fixed joints may occur anywhere in the chain; a tool fixed to link 6 is ignored.

    Args:
        name: name of an arm in this package; ignored if `urdf` is given.
        urdf: path of a URDF; None for the arm `name`.

    Raises:
        ConfigurationError: the file is missing, is not a URDF, or describes another kind of arm.
    """
    path = Path(urdf) if urdf is not None else ASSETS / f"{name}.urdf"
    try:
        root = ElementTree.parse(path).getroot()
        return _parse(root, path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"urdf={path}: cannot be read ({reason})") from None
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"urdf={path}: is not XML ({error})") from None
    except _InvalidDescriptionError as error:
        raise ConfigurationError(f"urdf={path}: {error}") from None


class _InvalidDescriptionError(Exception):
    """Error in a URDF; the message follows the path of the file."""


def _parse(root: ElementTree.Element, path: Path) -> Robot:
    if root.tag != "robot":
        raise _InvalidDescriptionError(f"is not a URDF: its root is <{root.tag}>, not <robot>")
    joints, origins = _serial_chain(root)
    limits = [_require(joint, "limit") for joint in joints]
    axes = np.array([_numbers(joint.find("axis"), "xyz", "1 0 0", 3) for joint in joints])
    lower, upper, velocity, effort = (
        np.array([_number(limit, key) for limit in limits])
        for key in ("lower", "upper", "velocity", "effort")
    )
    if not (np.linalg.norm(axes, axis=1) > 0).all():
        raise _InvalidDescriptionError("has a joint whose axis is zero")
    if not ((lower < upper) & (velocity > 0) & (effort > 0)).all():
        raise _InvalidDescriptionError("needs lower < upper, velocity > 0 and effort > 0 on joints")
    return Robot(
        urdf=str(path.resolve()),
        origins=origins,
        axes=axes / np.linalg.norm(axes, axis=1, keepdims=True),
        lower=lower,
        upper=upper,
        velocity=velocity,
        effort=effort,
        capsules=tuple(_capsules(root, joints, origins)),
    )


def _serial_chain(root: ElementTree.Element) -> tuple[list[ElementTree.Element], Array]:
    """Return the six moving joints from base to flange, and their origins `[6, 4, 4]`."""
    all_joints = root.findall("joint")
    moving = [joint for joint in all_joints if joint.get("type") != "fixed"]
    found = ", ".join(f"{joint.get('name')} ({joint.get('type')})" for joint in moving) or "none"
    wrong = f"needs six revolute joints in one serial chain, but its moving joints are {found}"
    if [joint.get("type") for joint in moving] != ["revolute"] * NUM_JOINTS:
        raise _InvalidDescriptionError(wrong)

    joint_above = {_link(joint, "child"): joint for joint in all_joints}
    chain: dict[int, tuple[ElementTree.Element, Array]] = {}
    for joint in moving:
        origin, above, depth = _pose(joint), joint_above.get(_link(joint, "parent")), 0
        for _ in all_joints:  # bounded, because the file can contain a loop
            if above is None:
                break
            if above.get("type") != "fixed":
                depth += 1
            elif depth == 0:
                origin = _pose(above) @ origin
            above = joint_above.get(_link(above, "parent"))
        chain[depth] = (joint, origin)
    if sorted(chain) != list(range(NUM_JOINTS)):
        raise _InvalidDescriptionError(f"{wrong}, which are not one behind the other")
    return [chain[i][0] for i in range(NUM_JOINTS)], np.stack([chain[i][1] for i in range(6)])


def _capsules(
    root: ElementTree.Element, joints: list[ElementTree.Element], origins: Array
) -> Iterator[Capsule]:
    """Yield the collision bodies of the base and the six links."""
    links = {link.get("name"): link for link in root.findall("link")}
    names = [_link(joints[0], "parent"), *(_link(joint, "child") for joint in joints)]
    # Base frame: the pose of joint 1 without the origin of joint 1 itself.
    frames = [origins[0] @ np.linalg.inv(_pose(joints[0])), *[np.eye(4)] * NUM_JOINTS]
    next_origins = [*origins[:, :3, 3], np.zeros(3)]
    for index, (name, frame) in enumerate(zip(names, frames, strict=True)):
        if name not in links:
            raise _InvalidDescriptionError(f"has no link {name}")
        for body in links[name].findall("collision"):
            pose = frame @ _pose(body)
            geometry = next(iter(_require(body, "geometry")), None)
            if geometry is not None and geometry.tag in ("capsule", "cylinder", "sphere"):
                length = 0.0 if geometry.tag == "sphere" else _number(geometry, "length")
                half = pose[:3, 2] * length / 2
                yield Capsule(
                    index, pose[:3, 3] - half, pose[:3, 3] + half, _number(geometry, "radius")
                )
            else:
                yield Capsule(index, frame[:3, 3], next_origins[index], BAR_RADIUS)


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
