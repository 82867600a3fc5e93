"""The state of the scene that the task reads, and its reader."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.arm import Arm
from envs.lift_cube.control import comparison, rotate, tilt
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError


def as_slice(indices: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which reads a view instead of a copy."""
    first, last = indices[0], indices[-1]
    return slice(first, last + 1) if indices == [*range(first, last + 1)] else indices


class ArmParts(NamedTuple):
    """Joints and links of the arm in Genesis, see `Arm`."""

    joints: list[Any]
    fingers: list[Any]
    hand: Any
    pads: list[Any]


def find_parts(arm: Arm, robot: Any) -> ArmParts:
    """Return the parts of `robot`, the arm in Genesis, that its description names.

    Raises:
        ConfigurationError: the arm lacks a named part, or has a moving joint that is not named.
    """
    joints = {joint.name: joint for joint in robot.joints if joint.n_dofs == 1}
    links = {link.name: link for link in robot.links}

    def named(kind: str, parts: Mapping[str, Any], setting: str, *names: str) -> list[Any]:
        for name in names:
            if name not in parts:
                raise ConfigurationError(
                    f"env.arm.{setting}: {arm.file} has no {kind} {name}; "
                    f"it has: {', '.join(parts)}"
                )
        return [parts[name] for name in names]

    parts = ArmParts(
        named("joint", joints, "joints", *arm.joints),
        named("joint", joints, "fingers", *arm.fingers),
        named("link", links, "hand", arm.hand)[0],
        named("link", links, "pads", *arm.pads),
    )
    loose = [name for name in joints if name not in (*arm.joints, *arm.fingers)]
    if loose:
        raise ConfigurationError(
            f"env.arm.fingers: {arm.file} has further moving joints, {', '.join(loose)}; name each "
            "joint in env.arm.joints or env.arm.fingers"
        )
    return parts


class Scene(NamedTuple):
    """Positions and speeds of all parts that the task reads, float32 on the simulator's device.

    Tensors may share the memory of the simulator, whose next step then overwrites them.

    Attributes:
        joints: angles of the joints `[N, J]`, rad.
        joint_speeds: `[N, J]`, rad/s.
        fingers: positions of the F finger joints `[N, F]`, m or rad.
        finger_speeds: `[N, F]`, m/s or rad/s.
        grip: position of the grip point `[N, 3]`, m.
        tilt: rotation vector from the orientation of the hand to that in the home posture `[N, 3]`,
            rad.
        cube: position of the cube's centre `[N, 3]`, m.
        touches: whether each pad touches the cube, bool `[N, 2]`.
    """

    joints: Tensor
    joint_speeds: Tensor
    fingers: Tensor
    finger_speeds: Tensor
    grip: Tensor
    tilt: Tensor
    cube: Tensor
    touches: Tensor


class SceneReader:
    """Reads the state from the memory of Genesis, after the scene was built in the home posture.

    The getters of Genesis copy whole fields and select parts of the copies, which takes longer.

    Args:
        gs: the package `genesis`.
        solver: rigid solver of the scene.
        arm: parts of the arm.
        cube: index of the cube's link.
        grip_point: point in the frame of the hand `[3]`, m.
    """

    def __init__(self, gs: Any, solver: Any, arm: ArmParts, cube: int, grip_point: Tensor) -> None:
        self._to_torch = gs.utils.misc.qd_to_torch
        self._state = solver.dyn_state
        self._contacts = solver.collider.collider_state
        self._joints = as_slice([joint.dofs_idx[0] for joint in arm.joints])
        self._fingers = as_slice([joint.dofs_idx[0] for joint in arm.fingers])
        self._axes = as_slice([joint.idx for joint in arm.joints])
        self._hand, self._cube = arm.hand.idx, cube
        self._grip_point = grip_point
        # Pairs of touching links in both orders, each as one number.
        self._num_links: int = solver.n_links
        pads = [pad.idx for pad in arm.pads]
        pairs = [[pad, cube] for pad in pads] + [[cube, pad] for pad in pads]
        order = torch.tensor([self._num_links, 1], device=grip_point.device)
        self._pairs = (torch.tensor(pairs, device=grip_point.device) * order).sum(-1)
        self._slots = torch.arange(
            self._field(self._contacts.contact_sort_idx).shape[1], device=grip_point.device
        )
        self._reads_stall = accelerator_of(grip_point.device).reads_stall
        self._down = comparison(self._field(self._state.links.quat)[0, self._hand].clone())

    def _field(self, field: Any) -> Tensor:
        """Return current values `[N, ...]`, a view where Genesis shares memory with torch."""
        return self._to_torch(field, transpose=True)

    def scene(self) -> Scene:
        """Return the current positions and speeds."""
        dofs, links = self._state.dofs, self._state.links
        position, speed = self._field(dofs.pos), self._field(dofs.vel)
        places, rotation = self._field(links.pos), self._field(links.quat)[:, self._hand]
        return Scene(
            position[:, self._joints],
            speed[:, self._joints],
            position[:, self._fingers],
            speed[:, self._fingers],
            places[:, self._hand] + rotate(rotation, self._grip_point),
            tilt(rotation, self._down),
            places[:, self._cube],
            self._touches(),
        )

    def axes(self) -> tuple[Tensor, Tensor]:
        """Return the axes of the joints `[N, J, 3]`, and points on them `[N, J, 3]`, m."""
        joints = self._state.joints
        return self._field(joints.xaxis)[:, self._axes], self._field(joints.xanchor)[:, self._axes]

    def _touches(self) -> Tensor:
        contacts, data = self._contacts, self._contacts.contact_data
        counts = self._field(contacts.n_contacts)
        # The first contacts in this order are valid. Few of the slots are in use, and the host
        # knows how many if it need not wait for the answer.
        order = self._field(contacts.contact_sort_idx)
        if not self._reads_stall:
            order = order[:, : int(counts.max())]
        links = torch.add(self._field(data.link_b), self._field(data.link_a), alpha=self._num_links)
        valid = self._slots[: order.shape[1]] < counts.unsqueeze(-1)
        pairs = links.gather(1, order.long()).masked_fill_(~valid, -1)
        return (pairs.unsqueeze(-1) == self._pairs).any(1).view(-1, 2, 2).any(1)
