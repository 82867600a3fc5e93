"""Scenes: rigid bodies and their poses, which a viewer draws in three dimensions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# Homogeneous transform `[4, 4]`, metres.
Pose = NDArray[np.floating]
Kind = Literal["box", "sphere", "cylinder", "capsule", "mesh"]


@dataclass(frozen=True)
class Shape:
    """A part of a rigid body.

    Attributes:
        kind: kind of the shape.
        size: edges of a `box`; radius of a `sphere`; length along z and radius of a `cylinder`, and
            of a `capsule` without its ends; metres. Scale of a `mesh` along its axes.
        color: red, green and blue, 0 to 1.
        pose: pose of the centre in the frame of the body.
        file: path of the file of a mesh, in metres unless it says another unit.
    """

    kind: Kind
    size: Sequence[float]
    color: Sequence[float]
    pose: Pose
    file: str = ""


@dataclass(frozen=True)
class Scene:
    """Bodies of one environment.

    Attributes:
        bodies: shapes of each body by its name. The body `a/b` moves with the body `a`.
        poses: function that returns the current poses of bodies of the environment of this index,
            each in the frame of the body that it moves with. The others stay where they are, at
            first in the origin.
        camera: position of the camera `[3]`, metres; z points up.
        look_at: point at which the camera looks `[3]`, metres.
        field_of_view: vertical field of view of the camera, rad.
    """

    bodies: Mapping[str, Sequence[Shape]]
    poses: Callable[[int], Mapping[str, Pose]]
    camera: Sequence[float]
    look_at: Sequence[float]
    field_of_view: float
