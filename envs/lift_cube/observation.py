"""Vector observations: numbers of order 1 for each environment."""

from typing import Final

import torch
from torch import Tensor

from envs.lift_cube.scene import Scene
from envs.lift_cube.simulation import Simulation

# Speeds in rad/s and lengths in m of order 1.
_SPEED: Final = 2.0
_LENGTH: Final = 0.25


class SceneEncoder:
    """Encodes the positions and speeds of a scene.

    Args:
        simulation: simulated scene.
        center: middle of the workspace on the floor `[3]`, m.
        with_cube: also encode touches, and the position of the cube.
    """

    def __init__(self, simulation: Simulation, center: Tensor, *, with_cube: bool) -> None:
        home = torch.tensor(simulation.arm.home, device=simulation.device)
        closed, travel = simulation.closed, simulation.opened - simulation.closed
        still, here = torch.zeros_like(home), torch.zeros_like(center)
        # Origin and unit of each entry, so that two operations encode all of them.
        entries = [
            (home, torch.ones_like(home)),
            (still, torch.full_like(home, _SPEED)),
            (closed, travel),
            (torch.zeros_like(closed), torch.full_like(closed, _SPEED)),
            (center, torch.full_like(center, _LENGTH)),
            (here, torch.full_like(center, _LENGTH)),
            (here, torch.ones_like(center)),
        ]
        if with_cube:
            entries += [
                (still[:2], torch.ones_like(still[:2])),  # touches of the two pads
                (center, torch.full_like(center, _LENGTH)),
                (here, torch.full_like(center, _LENGTH)),
            ]
        origins, units = zip(*entries, strict=True)
        self._scale = 1.0 / torch.cat(units)
        self._offset = -torch.cat(origins) * self._scale
        self._with_cube = with_cube

    def __call__(self, scene: Scene, target: Tensor) -> Tensor:
        """Return observations `[N, D]`, float32.

        Args:
            scene: positions and speeds.
            target: targets of the grip points `[N, 3]`, m.
        """
        entries = [
            scene.joints,
            scene.joint_speeds,
            scene.fingers,
            scene.finger_speeds,
            scene.grip,
            target - scene.grip,
            scene.tilt,
        ]
        if self._with_cube:
            entries += [scene.touches, scene.cube, scene.to_cube]
        return torch.addcmul(self._offset, self._scale, torch.cat(entries, dim=-1))
