"""The tasks: rewards term by term, and the conditions of success."""

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.scene import Scene

Task = Literal["lift", "reach"]

LIFTED: Final = 0.005  # m, rise of a cube that has left the floor
SUCCESS_RISE: Final = 0.065  # m
SUCCESS_REWARD: Final = 10.0
# Terms of the reward of each task.
TERMS: Final[dict[Task, tuple[str, ...]]] = {
    "lift": ("reach", "floor", "grasp", "lifted", "high", "drop", "smooth"),
    "reach": ("reach", "floor"),
}
# Maximum sum of the terms without success. It is subtracted, so that every step costs and no policy
# gains by delaying success.
_MAX_TERMS: Final[dict[Task, float]] = {"lift": 5.25, "reach": 1.0}


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


def judge(
    task: Task, scene: Scene, resting: Tensor, was_lifted: Tensor, action_change: Tensor
) -> Progress:
    """Return reward and success after a step.

    The reward of a step is (the sum of the terms - m) / m, at most 0, and 10 more on success. The
    scale m is 5.25 for the task `lift` and 1 for `reach`.

    | term | value |
    | --- | --- |
    | `reach` | 1 - tanh(10 d), d the distance in metres from grip point to cube |
    | `floor` | -1 while the grip point is less than 1 cm above the floor |
    | `grasp` | 0.25 + 2 r / 0.065 while grasped, r the rise of the cube in metres |
    | `lifted` | 1 while the cube is grasped and has risen by 5 mm |
    | `high` | 1 while the cube is grasped and has risen by 6.5 cm |
    | `drop` | -2 in the step in which a lifted cube is let go |
    | `smooth` | -0.01 times the squared change of the action, while lifted |

    The task `reach` has only the terms `reach` and `floor`. It succeeds when a pad touches the
    cube.

    Args:
        task: `lift` or `reach`.
        scene: positions after the step.
        resting: height of the centre of each cube on the floor `[N]`, m.
        was_lifted: `Progress.lifted` of the step before, bool `[N]`.
        action_change: squared norm of the change of the action `[N]`.
    """
    distance = (scene.cube - scene.grip).norm(dim=-1)
    reach = 1.0 - torch.tanh(10.0 * distance)
    floor = -1.0 * (scene.grip[:, 2] < 0.01)
    grasped = scene.touches.all(-1)
    rise = scene.cube[:, 2] - resting
    lifted = grasped & (rise > LIFTED)
    if task == "reach":
        success = scene.touches.any(-1)
        terms = torch.stack([reach, floor])
    else:
        success = grasped & (rise > SUCCESS_RISE)
        grasp = grasped * (0.25 + rise * (2.0 / SUCCESS_RISE)).clamp(0.25, 2.25)
        drop = -2.0 * (was_lifted > grasped)
        smooth = -0.01 * lifted * action_change
        terms = torch.stack([reach, floor, grasp, lifted, success, drop, smooth])
    reward = terms.sum(0) / _MAX_TERMS[task] - 1.0
    reward = torch.add(reward, success, alpha=SUCCESS_REWARD)
    return Progress(lifted, success, reward, terms)


def measure(task: Task, scene: Scene, resting: Tensor) -> tuple[str, Tensor]:
    """Return the name and the values of the length that shows how far a task is solved.

    Args:
        task: `lift` or `reach`.
        scene: current positions.
        resting: height of the centre of each cube on the floor `[N]`, m.

    Returns:
        Name, and lengths `[N]`, m: the rise of the cube, or the distance from grip point to cube.
    """
    if task == "reach":
        return "distance", (scene.cube - scene.grip).norm(dim=-1)
    return "height", (scene.cube[:, 2] - resting).clamp(min=0.0)
