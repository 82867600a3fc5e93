"""Result of the examination of a robot file."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Examination(NamedTuple):
    """Report and picture of an arm."""

    file: str  # path of the robot file
    report: str  # lines about limits, contact and reach
    # RGB image `[H, W, 3]` of the arm in its home posture and of positions that it reaches; None if
    # the description of the arm is incomplete.
    picture: NDArray[np.uint8] | None
