"""Vector observations: numbers of order 1 for each environment."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from envs.lift_cube.arm import Arm
from envs.lift_cube.scene import Scene
from envs.lift_cube.simulation import CUBE_SIZE
from torchrl_gpu.environments.capabilities import Element

# Speeds in rad/s and lengths in m of order 1.
_SPEED: Final = 2.0
_LENGTH: Final = 0.25

_AXES: Final = ("x", "y", "z")


def observation_elements(arm: Arm, *, with_cube: bool) -> tuple[Element, ...]:
    """Return the elements of an observation, in the frame of the base.

    `with_cube` tells whether touches and the position of the cube are observed, too.
    """
    closed, opened = (arm.per_finger(each) for each in (arm.closed_position, arm.open_position))
    fingers = list(zip(arm.fingers, closed, opened, strict=True))
    middle = [sum(ends) / 2 for ends in zip(arm.workspace_low, arm.workspace_high, strict=True)]
    middle[2] = CUBE_SIZE / 2

    def vector(name: str, origin: Sequence[float] = (0.0, 0.0, 0.0)) -> tuple[Element, ...]:
        axes = zip(_AXES, origin, strict=True)
        return tuple(Element(f"{name} {axis}", "m", _LENGTH, zero) for axis, zero in axes)

    arm_only = (
        *(
            Element(f"{joint} angle", "rad", 1.0, home)
            for joint, home in zip(arm.joints, arm.home, strict=True)
        ),
        *(Element(f"{joint} speed", "rad/s", _SPEED) for joint in arm.joints),
        *(Element(f"{name} position", "m or rad", up - low, low) for name, low, up in fingers),
        *(Element(f"{name} speed", "m/s or rad/s", _SPEED) for name in arm.fingers),
        *vector("grip", middle),
        *vector("target - grip"),
        *(Element(f"tilt {axis}", "rad") for axis in _AXES),
    )
    if not with_cube:
        return arm_only
    touches = (Element(f"touch of {pad}") for pad in arm.pads)
    return (*arm_only, *touches, *vector("cube", middle), *vector("cube - grip"))


class SceneEncoder:
    """Encodes the positions and speeds of a scene, with the scales of `observation_elements`."""

    def __init__(
        self, elements: Sequence[Element], device: torch.device, *, with_cube: bool
    ) -> None:
        scales, offsets = (
            torch.tensor([getattr(each, name) for each in elements], device=device)
            for name in ("scale", "offset")
        )
        self._scale = 1.0 / scales
        self._offset = -offsets * self._scale
        self._with_cube = with_cube

    def __call__(self, scene: Scene, target: Tensor) -> Tensor:
        """Return observations `[N, D]`, float32; the targets of the grip points are `[N, 3]`, m."""
        arm = (scene.joints, scene.joint_speeds, scene.fingers, scene.finger_speeds)
        hand = (scene.grip, target - scene.grip, scene.tilt)
        cube = (scene.touches, scene.cube, scene.to_cube) if self._with_cube else ()
        return torch.addcmul(self._offset, self._scale, torch.cat((*arm, *hand, *cube), dim=-1))
