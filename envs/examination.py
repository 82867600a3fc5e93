"""Result of the examination of a robot file."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Examination(NamedTuple):
    """What an environment says about an arm.

    Attributes:
        file: path of the robot file.
        report: lines about limits, contact and reach.
        picture: RGB image of the arm in its home posture and of positions that it reaches,
            `[H, W, 3]`, uint8; None for an arm whose description is incomplete.
    """

    file: str
    report: str
    picture: NDArray[np.uint8] | None
