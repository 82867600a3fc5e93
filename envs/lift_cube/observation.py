"""Vector observations: numbers of order 1 for each environment."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from envs.lift_cube.simulation import Scene, Simulation

# Scales that bring speeds in rad/s and lengths in m to order 1.
_SPEED_SCALE: Final = 0.5
_LENGTH_SCALE: Final = 4.0


class ObservationEncoder:
    """Encodes the positions and speeds of a scene.

    Args:
        simulation: simulated scene.
        home: joint angles of the home posture `[J]`, rad.
        center: middle of the workspace on the floor `[3]`, m.
        with_cube: also encode touches, and the position of the cube.
    """

    def __init__(
        self, simulation: Simulation, home: Tensor, center: Tensor, *, with_cube: bool
    ) -> None:
        self._closed = simulation.closed
        self._travel = simulation.opened - simulation.closed
        self._home = home
        self._center = center
        self._with_cube = with_cube

    def __call__(self, scene: Scene, target: Tensor) -> Tensor:
        """Return observations `[N, D]`, float32.

        Args:
            scene: positions and speeds.
            target: targets of the grip points `[N, 3]`, m.
        """
        entries = [
            scene.joints - self._home,
            _SPEED_SCALE * scene.joint_speeds,
            (scene.fingers - self._closed) / self._travel,
            _SPEED_SCALE * scene.finger_speeds,
            _LENGTH_SCALE * (scene.grip - self._center),
            _LENGTH_SCALE * (target - scene.grip),
            scene.tilt,
        ]
        if self._with_cube:
            entries += [
                scene.touches.to(torch.float32),
                _LENGTH_SCALE * (scene.cube - self._center),
                _LENGTH_SCALE * (scene.cube - scene.grip),
            ]
        return torch.cat(entries, dim=-1)
