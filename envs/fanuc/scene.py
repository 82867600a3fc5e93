"""The scene of an arm and its target: see `torchrl_gpu.environments.scene`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from envs.fanuc.bullet import Client, pybullet
from envs.fanuc.robot import Robot
from envs.fanuc.simulation import parts_of, revolute_joints
from torchrl_gpu.environments.scene import Kind, Pose, Shape

TARGET: Final = "target"
_KINDS: Final[dict[int, Kind]] = {
    pybullet.GEOM_BOX: "box",
    pybullet.GEOM_SPHERE: "sphere",
    pybullet.GEOM_CYLINDER: "cylinder",
    pybullet.GEOM_CAPSULE: "capsule",
    pybullet.GEOM_MESH: "mesh",
}


def body_names(robot: Robot) -> list[str]:
    """Return the names of the bodies that the joints move, each inside that of the one before."""
    joints = (f"joint_{number}" for number in range(1, robot.num_joints + 1))
    return list(accumulate(joints, "{}/{}".format))


def shapes_of(client: Client, body: int) -> Iterator[tuple[int, Shape]]:
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
