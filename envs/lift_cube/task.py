"""The tasks: rewards term by term, and the conditions of success."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.simulation import CUBE_SIZE, Scene

Task = Literal["lift", "reach"]

LIFTED: Final = 0.02  # m, height of the centre of a cube that has left the floor
SUCCESS_HEIGHT: Final = 0.08  # m
RESTING: Final = CUBE_SIZE / 2
SUCCESS_REWARD: Final = 10.0
# Terms of the reward of each task.
TERMS: Final[dict[Task, tuple[str, ...]]] = {
    "lift": ("reach", "floor", "grasp", "lifted", "high", "drop", "smooth"),
    "reach": ("reach", "floor"),
}
# Sum of all terms that a policy can hold without success. Less this sum, every step costs, and no
# policy gains by delaying success.
_MOST: Final[dict[Task, float]] = {"lift": 5.25, "reach": 1.0}


class Progress(NamedTuple):
    """Judgement of one step; bool and float tensors `[N]`.

    Attributes:
        lifted: both pads touch the cube, and it has left the floor.
        success: the task is solved.
        reward: sum of the weighted terms.
        terms: terms of the reward, `[T, N]`, in the order of `TERMS`.
    """

    lifted: Tensor
    success: Tensor
    reward: Tensor
    terms: Tensor


def judge(task: Task, scene: Scene, was_lifted: Tensor, action_change: Tensor) -> Progress:
    """Return reward and success after a step.

    The reward of a step is (the sum of the terms - m) / m, at most 0, and 10 more on success. The
    scale m is 5.25 for the task `lift` and 1 for `reach`.

    | term | value |
    | --- | --- |
    | `reach` | 1 - tanh(10 d), d the distance in metres from grip point to cube |
    | `floor` | -1 while the grip point is less than 1 cm above the floor |
    | `grasp` | 0.25 + 2 (z - 0.015) / (0.08 - 0.015) while grasped, z the height of the cube |
    | `lifted` | 1 while the cube is grasped and above 2 cm |
    | `high` | 1 while the cube is grasped and above 8 cm |
    | `drop` | -2 in the step in which a lifted cube is let go |
    | `smooth` | -0.01 times the squared change of the action, while lifted |

    The task `reach` has only the terms `reach` and `floor`. It succeeds when a pad touches the
    cube.

    Args:
        task: `lift` or `reach`.
        scene: positions after the step.
        was_lifted: `Progress.lifted` of the step before, bool `[N]`.
        action_change: squared norm of the change of the action `[N]`.
    """
    distance = (scene.cube - scene.grip).norm(dim=-1)
    reach = 1.0 - torch.tanh(10.0 * distance)
    floor = -(scene.grip[:, 2] < 0.01).to(reach.dtype)
    grasped = scene.touches.all(-1)
    height = scene.cube[:, 2]
    lifted = grasped & (height > LIFTED)
    if task == "reach":
        success = scene.touches.any(-1)
        terms = torch.stack([reach, floor])
    else:
        success = grasped & (height > SUCCESS_HEIGHT)
        rise = ((height - RESTING) / (SUCCESS_HEIGHT - RESTING)).clamp(0.0, 1.0)
        grasp = grasped * (0.25 + 2.0 * rise)
        drop = -2.0 * (was_lifted & ~grasped)
        smooth = -0.01 * lifted * action_change
        terms = torch.stack([reach, floor, grasp, lifted, success, drop, smooth])
    reward = terms.sum(0) / _MOST[task] - 1.0 + SUCCESS_REWARD * success
    return Progress(lifted, success, reward, terms)
