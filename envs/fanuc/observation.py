"""What the policy sees of an arm and its target: one row of 36 numbers, all of order 1.

In numpy: the workers encode what they have simulated, each its own arms, and they run without
torch, whose operations cost three times as much on arrays this small.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.robot import NUM_JOINTS, Robot

OBSERVATION_SIZE = 36

# Lengths [m] at which direction and nearness change most: the last centimetres of the way.
DIRECTION_LENGTH = 0.05
NEARNESS_LENGTH = 0.05

# Room for rounding in float32.
ROUNDING = 1e-5


class ObservationEncoder:
    """Turns joint states and targets into observations.

    Positions are given in the frame of link 1, whose origin is that of joint 1 and which turns
    with it: the task looks the same wherever the arm has turned. They are divided by the arm's
    reach. The numbers of an observation, and their bounds:

        0:6    joint angles, -1 at the lower and 1 at the upper limit   -1 to 1
        6:12   joint speeds, as shares of the top speeds                -1 to 1
        12:17  sines of joints 2 to 6                                   -1 to 1
        17:22  cosines of joints 2 to 6                                 -1 to 1
        22:25  flange position                                          -1 to 1
        25:28  target position                                          -1 to 1
        28:31  error = target - flange                                  -2 to 2
        31:34  error / (distance + 0.05 m)                              -1 to 1
        34     exp(-distance / 0.05 m)                                   0 to 1
        35     turn of joint 1 that would face the target                -1 to 1

    The last one tells left from right for targets behind the arm: joint 1 cannot pass there, so the
    shorter way round can be the wrong one. It is divided by the longest turn there can be.

    Args:
        robot: the arm.
    """

    def __init__(self, robot: Robot) -> None:
        self._centre = np.concatenate(((robot.lower + robot.upper) / 2, np.zeros(NUM_JOINTS)))
        self._scale = np.concatenate(((robot.upper - robot.lower) / 2, robot.velocity))
        self._pose_map = robot.pose_map()
        self._flange = robot.origins[-1, :, 3:]
        self._reach = robot.reach
        # Where link 1 points and what lies to its left, across the axis of joint 1.
        axis = robot.axes[0]
        ahead = np.eye(3)[0] if abs(axis[0]) < 0.9 else np.eye(3)[1]
        left = np.cross(axis, ahead)
        self._ahead_left = np.stack((np.cross(left, axis), left), 1)
        self._longest_turn = np.pi + max(abs(robot.lower[0]), abs(robot.upper[0]))

    def __call__(
        self,
        state: NDArray[np.float64],
        target: NDArray[np.float32],
        observation: NDArray[np.float32],
        distance: NDArray[np.float32],
    ) -> None:
        """Encode a batch into the arrays given for it.

        Args:
            state: joint angles [rad] and speeds [rad/s], `[N, 2, 6]`.
            target: from the origin of joint 1, in the base frame, `[N, 3]`, metres.
            observation: takes the observations, `[N, 36]`.
            distance: takes the distances from flange to target, `[N, 1]`, metres.
        """
        count, angles = len(state), state[:, 0]
        features = np.ones((count, 2 * NUM_JOINTS + 1))
        sines = np.sin(angles, out=features[:, :NUM_JOINTS])
        cosines = np.cos(angles, out=features[:, NUM_JOINTS:-1])
        poses = (features @ self._pose_map).reshape(count, NUM_JOINTS, 4, 4)
        flange = self._flange
        for joint in (4, 3, 2, 1):  # from the wrist inwards, as far as link 1
            flange = poses[:, joint] @ flange
        flange = flange[:, :3, 0]
        # A row times a rotation is turned the other way: from the base frame to that of link 1.
        goal = (target[:, None] @ poses[:, 0, :3, :3])[:, 0]
        error = goal - flange
        np.sqrt((error * error).sum(1, keepdims=True), out=distance, casting="same_kind")

        observation[:, :12] = (state.reshape(count, -1) - self._centre) / self._scale
        observation[:, 12:17] = sines[:, 1:]
        observation[:, 17:22] = cosines[:, 1:]
        observation[:, 22:25] = flange
        observation[:, 25:28] = goal
        observation[:, 28:31] = error
        observation[:, 22:31] /= self._reach
        observation[:, 31:34] = error / (distance + DIRECTION_LENGTH)
        observation[:, 34:35] = np.exp(distance * (-1 / NEARNESS_LENGTH))
        ahead, left = (goal @ self._ahead_left).T
        facing = np.mod(angles[:, 0] + np.arctan2(left, ahead) + np.pi, 2 * np.pi) - np.pi
        observation[:, 35] = (facing - angles[:, 0]) / self._longest_turn


def observation_bounds() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and highest observations `[36]`, with 1e-5 of room for rounding."""
    high = np.ones(OBSERVATION_SIZE, dtype=np.float32)
    high[28:31] = 2
    low = -high
    low[34] = 0
    return low - np.float32(ROUNDING), high + np.float32(ROUNDING)
