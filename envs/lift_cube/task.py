"""The tasks: rewards term by term, and the conditions of success."""

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.scene import Scene

Task = Literal["lift", "reach"]

LIFTED: Final = 0.005  # m, rise of a cube that has left the floor
SUCCESS_RISE: Final = 0.065  # m
SUCCESS_REWARD: Final = 10.0
_LOW_GRIP: Final = 0.01  # m
# Terms of the reward of each task, and the factors of their quantities.
TERMS: Final[dict[Task, dict[str, float]]] = {
    "lift": {
        "reach": 2.0,
        "floor": -1.0,
        "grasp": 2.0 / SUCCESS_RISE,
        "lifted": 1.0,
        "high": 1.0,
        "drop": -2.0,
        "smooth": -0.01,
    },
    "reach": {"reach": 2.0, "floor": -1.0},
}
# Maximum sum of the terms. It is subtracted, so that every step costs and no policy
# gains by delaying success.
_MAX_TERMS: Final[dict[Task, float]] = {"lift": 5.25, "reach": 1.0}


class Progress(NamedTuple):
    """Judgement of one step; bool and float tensors `[N]`."""

    lifted: Tensor  # both pads touch the cube, and it has left the floor
    success: Tensor  # the task is solved
    reward: Tensor
    quantities: Tensor  # `[T, N]`; a term of the reward is its factor in `TERMS` times its quantity


class Judge:
    """Judges steps: reward and success.

    The reward of a step is (the sum of the terms - m) / m, at most 0, and 10 more on success. The
    scale m is 5.25 for the task `lift` and 1 for `reach`. In the task `lift`, the sum reaches m on
    success alone, by the term `high`.

    | term | value |
    | --- | --- |
    | `reach` | 1 - tanh(10 d), d the distance in metres from grip point to cube |
    | `floor` | -1 while the grip point is less than 1 cm above the floor |
    | `grasp` | 0.25 + 2 r / 0.065 while grasped, r the rise of the cube in metres |
    | `lifted` | 1 while the cube is grasped and has risen by 5 mm |
    | `high` | 1 on success, when the cube is grasped and has risen by 6.5 cm |
    | `drop` | -2 in the step in which a lifted cube is let go |
    | `smooth` | -0.01 times the squared change of the action, while lifted |

    The task `reach` has only the terms `reach` and `floor`. It succeeds when a pad touches the
    cube.

    Args:
        task: `lift` or `reach`.
        resting: height of the centre of each cube on the floor `[N]`, m.
    """

    def __init__(self, task: Task, resting: Tensor) -> None:
        self._task: Task = task
        self._resting = resting
        factors = resting.new_tensor(list(TERMS[task].values()))
        self._weights = factors / _MAX_TERMS[task]

    def __call__(self, scene: Scene, was_lifted: Tensor, action_change: Tensor) -> Progress:
        """Return the judgement of a step.

        Args:
            scene: positions after the step.
            was_lifted: `Progress.lifted` of the step before, bool `[N]`.
            action_change: squared norm of the change of the action `[N]`.
        """
        # 1 - tanh(x) = 2 sigmoid(-2 x)
        reach = (torch.linalg.vector_norm(scene.to_cube, dim=-1) * -20.0).sigmoid()
        floor = scene.grip[:, 2] < _LOW_GRIP
        grasped = scene.touches.all(-1)
        rise = (scene.cube[:, 2] - self._resting) * grasped  # 0 without a grasp
        lifted = rise > LIFTED
        if self._task == "reach":
            success = scene.touches.any(-1)
            quantities = torch.stack([reach, floor])
        else:
            success = rise > SUCCESS_RISE
            grasp = torch.add(rise.clamp(0.0, SUCCESS_RISE), grasped, alpha=SUCCESS_RISE / 8)
            dropped = was_lifted > grasped
            smooth = lifted * action_change
            quantities = torch.stack([reach, floor, grasp, lifted, success, dropped, smooth])
        reward = torch.add(self._weights @ quantities, success, alpha=SUCCESS_REWARD) - 1.0
        return Progress(lifted, success, reward, quantities)

    def parts(self, progress: Progress, index: int) -> dict[str, float]:
        """Return the terms of the reward of one environment, by name.

        These are the terms divided by m, `step`, which is -1, and `success`, which is 0 or 10.
        """
        scaled = (self._weights * progress.quantities[:, index]).tolist()
        terms = dict(zip(TERMS[self._task], scaled, strict=True))
        return {**terms, "step": -1.0, "success": SUCCESS_REWARD * float(progress.success[index])}

    def measure(self, scene: Scene) -> tuple[str, Tensor]:
        """Return the name and the values `[N]`, m, of the length that measures the task.

        It is the rise of the cube, or the distance from grip point to cube.
        """
        if self._task == "reach":
            return "distance", scene.to_cube.norm(dim=-1)
        return "height", (scene.cube[:, 2] - self._resting).clamp(min=0.0)
