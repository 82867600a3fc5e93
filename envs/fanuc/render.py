"""Images and scenes of an arm and its target.

Images are drawn on the CPU; no display or graphics card is needed.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from envs.fanuc.bullet import Client, pybullet
from envs.fanuc.robot import Robot
from envs.fanuc.simulation import add_marker, parts_of, revolute_joints
from torchrl_gpu.environments.scene import Kind, Pose, Scene, Shape
from torchrl_gpu.errors import ConfigurationError

TARGET: Final = "target"
_KINDS: Final[dict[int, Kind]] = {
    pybullet.GEOM_BOX: "box",
    pybullet.GEOM_SPHERE: "sphere",
    pybullet.GEOM_CYLINDER: "cylinder",
    pybullet.GEOM_CAPSULE: "capsule",
    pybullet.GEOM_MESH: "mesh",
}

TRAIL_COLOR = (0.15, 0.45, 0.95, 1.0)
RING_COLOR = (230, 26, 64)
FLOOR_COLOR = (0.88, 0.90, 0.93, 1.0)

# Shadows of the renderer show artefacts on a wider floor.
FLOOR_HALF_EXTENTS = (3.0, 3.0, 0.01)  # m
TRAIL_LENGTH = 30  # tool positions, half a second
TRAIL_RADIUS = 0.006  # m
RING_RADIUS = 0.09  # m, around the target
HIDDEN = (0.0, 0.0, -1.0)  # under the floor

# View from the front left and slightly above that contains the whole work space; lengths in metres
# for an arm with the reach of the LR Mate, 0.85 m.
CAMERA_TARGET = (0.1, 0.0, 0.12)  # from joint 1
CAMERA_DISTANCE, CAMERA_YAW, CAMERA_PITCH = 1.9, 50.0, -22.0
CAMERA_REACH = 0.85
FIELD_OF_VIEW = 45.0
LIGHT_DIRECTION, LIGHT_DISTANCE = (0.5, -1.0, 2.0), 10.0


class ArmRenderer:
    """Draws one arm with PyBullet's software renderer, in a separate client.

    A sphere of radius `target_radius` in metres marks the target, see `add_marker`; dots mark up to
    `trail` positions of the tool.

    Raises:
        ConfigurationError: PyBullet cannot load the URDF.
    """

    def __init__(
        self,
        robot: Robot,
        width: int = 640,
        height: int = 480,
        target_radius: float = 0.015,
        trail: int = TRAIL_LENGTH,
    ) -> None:
        self._width, self._height = width, height
        self._client = Client()
        try:
            self._arm = self._client.loadURDF(robot.urdf, useFixedBase=True)
        except pybullet.error:
            raise ConfigurationError(
                f"{robot.urdf}: PyBullet cannot load this file; check that its meshes exist"
            ) from None
        self._joints = revolute_joints(self._arm, self._client)
        self._body_names = body_names(robot)
        slab = self._client.createVisualShape(
            pybullet.GEOM_BOX,
            halfExtents=FLOOR_HALF_EXTENTS,
            rgbaColor=FLOOR_COLOR,
            visualFramePosition=(0, 0, -FLOOR_HALF_EXTENTS[2]),
        )
        self._floor = self._client.createMultiBody(0, -1, slab)
        self._target = add_marker(self._client, target_radius)
        ball = self._client.createVisualShape(
            pybullet.GEOM_SPHERE, radius=TRAIL_RADIUS, rgbaColor=TRAIL_COLOR
        )
        self._balls = [self._client.createMultiBody(0, -1, ball, HIDDEN) for _ in range(trail)]
        self._trail: deque[Sequence[float]] = deque(maxlen=trail)
        self._last = (0, 0)  # arm and step of the last picture of `follow`
        scale = robot.reach / CAMERA_REACH
        self._centre = (robot.shoulder + scale * np.array(CAMERA_TARGET)).tolist()
        self._view = pybullet.computeViewMatrixFromYawPitchRoll(
            self._centre, scale * CAMERA_DISTANCE, CAMERA_YAW, CAMERA_PITCH, 0, upAxisIndex=2
        )
        self._projection = pybullet.computeProjectionMatrixFOV(
            FIELD_OF_VIEW, width / height, 0.1, scale * 10.0
        )

    def _move(self, body: int, position: Sequence[float]) -> None:
        self._client.resetBasePositionAndOrientation(body, position, (0, 0, 0, 1))

    def frame(
        self,
        joints: Sequence[float],
        target: Sequence[float],
        trail: Sequence[Sequence[float]] = (),
    ) -> NDArray[np.uint8]:
        """Draw an RGB image `[height, width, 3]`, uint8.

        Joint angles are in rad; target and past positions of the tool, of which the last ones are
        drawn, in metres in the arm's base frame.
        """
        for joint, angle in zip(self._joints, joints, strict=True):
            self._client.resetJointState(self._arm, joint, angle)
        self._move(self._target, target)
        points = list(trail)[-len(self._balls) :]
        for index, body in enumerate(self._balls):
            self._move(body, points[index] if index < len(points) else HIDDEN)
        _, _, pixels, _, _ = self._client.getCameraImage(
            self._width,
            self._height,
            self._view,
            self._projection,
            lightDirection=LIGHT_DIRECTION,
            lightDistance=LIGHT_DISTANCE,
            lightAmbientCoeff=0.55,
            lightDiffuseCoeff=0.45,
            lightSpecularCoeff=0.1,
            shadow=1,
            renderer=pybullet.ER_TINY_RENDERER,
        )
        rgba = np.asarray(pixels, dtype=np.uint8).reshape(self._height, self._width, 4)
        return self._with_ring(rgba[..., :3], target)

    def follow(
        self,
        index: int,
        step: int,
        joints: Sequence[float],
        target: Sequence[float],
        tool: Sequence[float],
    ) -> NDArray[np.uint8]:
        """Draw an arm of several with the trail of its tool, see `frame`.

        Another arm or a new episode starts a new trail; the same step again draws the same picture.
        """
        if index != self._last[0] or step < self._last[1] or step == 0:
            self._trail.clear()
        if not self._trail or step != self._last[1]:
            self._trail.append(tool)
        self._last = (index, step)
        return self.frame(joints, target, self._trail)

    def scene(self, poses: Callable[[int], Mapping[str, Pose]]) -> Scene:
        """Return the scene of an arm; `poses` are those of `body_names(robot)` and `TARGET`."""
        named = {
            self._floor: ["floor"],
            self._target: [TARGET],
            self._arm: ["base", *self._body_names],
        }
        bodies: dict[str, list[Shape]] = {name: [] for names in named.values() for name in names}
        for number, names in named.items():
            for part, shape in _shapes_of(self._client, number):
                bodies[names[part]].append(shape)
        camera = np.linalg.inv(np.reshape(self._view, (4, 4), order="F"))[:3, 3]
        angle = math.radians(FIELD_OF_VIEW)
        return Scene(bodies, poses, camera.tolist(), self._centre, angle)

    def _with_ring(self, picture: NDArray[np.uint8], target: Sequence[float]) -> NDArray[np.uint8]:
        """Draw a ring around the target, which also shows a target behind the arm."""
        view, projection = (
            np.reshape(matrix, (4, 4), order="F") for matrix in (self._view, self._projection)
        )
        x, y, _, w = projection @ view @ (*target, 1.0)
        column, row = self._width * (1 + x / w) / 2, self._height * (1 - y / w) / 2
        radius = RING_RADIUS * projection[1, 1] / w * self._height / 2
        box = (column - radius, row - radius, column + radius, row + radius)
        image = Image.fromarray(np.ascontiguousarray(picture))
        ImageDraw.Draw(image).ellipse(box, outline=RING_COLOR, width=2)
        return np.array(image)

    def close(self) -> None:
        """Disconnect the client."""
        self._client.disconnect()


def body_names(robot: Robot) -> list[str]:
    """Return the names of the bodies that the joints move, each inside that of the one before."""
    joints = (f"joint_{number}" for number in range(1, robot.num_joints + 1))
    return list(accumulate(joints, "{}/{}".format))


def _shapes_of(client: Client, body: int) -> Iterator[tuple[int, Shape]]:
    """Yield the visual shapes of a multi-body, each after the index of its body: see `Robot`."""
    parts = parts_of(body, client)
    origins = [_frame(client, body, link) for link in (-1, *revolute_joints(body, client))]
    for _, link, kind, size, file, *pose, color in client.getVisualShapeData(body):
        if kind in _KINDS:
            part = parts[link]
            inside = np.linalg.inv(origins[part]) @ _frame(client, body, link) @ _pose(*pose)
            yield part, Shape(_KINDS[kind], size, color[:3], inside, file.decode())


def _frame(client: Client, body: int, link: int) -> Pose:
    """Return the pose of the frame of a link, of an arm whose base, link -1, is in the origin."""
    return np.eye(4) if link < 0 else _pose(*client.getLinkState(body, link)[4:6])


def _pose(position: Sequence[float], rotation: Sequence[float]) -> Pose:
    """Return a pose by its position and its quaternion x, y, z, w."""
    pose = np.eye(4)
    pose[:3, :3] = np.reshape(pybullet.getMatrixFromQuaternion(rotation), (3, 3))
    pose[:3, 3] = position
    return pose
