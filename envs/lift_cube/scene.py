"""The state of the scene that the task reads, and its reader."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.arm_model import ArmParts, as_slice
from envs.lift_cube.control import carried, comparison, lever, tilt
from torchrl_gpu.devices.kinds import accelerator_of


class Scene(NamedTuple):
    """Positions and speeds of all parts that the task reads, float32 on the simulator's device.

    Tensors may share the memory of the simulator, whose next step then overwrites them.
    """

    joints: Tensor  # angles `[N, J]`, rad
    joint_speeds: Tensor  # `[N, J]`, rad/s
    fingers: Tensor  # positions of the F finger joints `[N, F]`, m or rad
    finger_speeds: Tensor  # `[N, F]`, m/s or rad/s
    grip: Tensor  # position of the grip point `[N, 3]`, m
    tilt: Tensor  # rotation vector from the hand's orientation to that at home `[N, 3]`, rad
    cube: Tensor  # position of the cube's centre `[N, 3]`, m
    to_cube: Tensor  # way from the grip point to the cube's centre `[N, 3]`, m
    touches: Tensor  # whether each pad touches the cube, bool `[N, 2]`


class SceneReader:
    """Reads the state from the memory of Genesis, after the scene was built in the home posture.

    The getters of Genesis copy whole fields and select parts of the copies, which takes longer.

    `gs` is the package `genesis`, `cube` the index of the cube's link, and the grip point is in the
    frame of the hand `[3]`, m.
    """

    def __init__(self, gs: Any, solver: Any, arm: ArmParts, cube: int, grip_point: Tensor) -> None:
        self._to_torch = gs.utils.misc.qd_to_torch
        # Metal shares memory, too, but each reading has to wait for the simulator.
        self._views_stay_valid = gs.use_zerocopy and gs.backend != gs.metal
        device = grip_point.device
        self._grip_point = lever(grip_point)

        state, collider = solver.dyn_state, solver.collider.collider_state
        dofs, links, joints = state.dofs, state.links, state.joints
        angles = as_slice([joint.dofs_idx[0] for joint in arm.joints])
        fingers = as_slice([joint.dofs_idx[0] for joint in arm.fingers])
        axes = as_slice([joint.idx for joint in arm.joints])
        self._joints, self._joint_speeds, self._fingers, self._finger_speeds = (
            self._reading(field, columns)
            for columns in (angles, fingers)
            for field in (dofs.pos, dofs.vel)
        )
        self._axes = self._reading(joints.xaxis, axes)
        self._anchors = self._reading(joints.xanchor, axes)
        self._hand = self._reading(links.pos, arm.hand.idx)
        self._rotation = self._reading(links.quat, arm.hand.idx)
        self._cube = self._reading(links.pos, cube)

        self._counts = self._reading(collider.n_contacts)
        self._order = self._reading(collider.contact_sort_idx)
        self._link_a = self._reading(collider.contact_data.link_a)
        self._link_b = self._reading(collider.contact_data.link_b)
        # A pair of touching links is one number, the row of a table that tells which pads touch.
        self._num_links: int = solver.n_links
        self._pads = torch.zeros(self._num_links**2, 2, dtype=torch.bool, device=device)
        for number, pad in enumerate(arm.pads):
            pairs = [pad.idx * self._num_links + cube, cube * self._num_links + pad.idx]
            self._pads[pairs, number] = True
        self._slots = torch.arange(self._order().shape[1], device=device)
        self._reads_stall = accelerator_of(device).reads_stall
        self._compared = comparison(self._rotation()[0].clone())

    def _reading(
        self, field: Any, columns: slice | list[int] | int | None = None
    ) -> Callable[[], Tensor]:
        """Return a function that returns the current values of a field, or of some columns."""

        def read() -> Tensor:
            values: Tensor = self._to_torch(field, transpose=True)
            return values if columns is None else values[:, columns]

        if isinstance(columns, list) or not self._views_stay_valid:
            return read
        view = read()
        return lambda: view

    def scene(self) -> Scene:
        """Return the current positions and speeds."""
        rotation, cube = self._rotation(), self._cube()
        grip = carried(self._hand(), rotation, self._grip_point)
        return Scene(
            self._joints(),
            self._joint_speeds(),
            self._fingers(),
            self._finger_speeds(),
            grip,
            tilt(rotation, self._compared),
            cube,
            cube - grip,
            self._touches(),
        )

    def axes(self) -> tuple[Tensor, Tensor]:
        """Return the axes of the joints `[N, J, 3]`, and points on them `[N, J, 3]`, m."""
        return self._axes(), self._anchors()

    def _touches(self) -> Tensor:
        # The first contacts in this order are valid. Few of the slots are in use, and the host
        # knows how many if it need not wait for the answer.
        counts, order = self._counts(), self._order()
        if not self._reads_stall:
            order = order[:, : int(counts.max())]
        pairs = torch.add(self._link_b(), self._link_a(), alpha=self._num_links)
        free = self._slots[: order.shape[1]] >= counts.unsqueeze(-1)
        # No link touches itself: row 0 stands for no contact.
        return self._pads[pairs.gather(1, order.long()).masked_fill_(free, 0)].any(1)
