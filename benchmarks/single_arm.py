"""A conventional environment: one arm, one process, Gymnasium and NumPy."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.raw_pybullet import FLANGE_LINK
from envs.fanuc.robot import CONTROL_RATE, Robot
from envs.fanuc.simulation import ArmGroup

Observation = NDArray[np.float32]


class SingleArm(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Reach a target with the flange, as a plain Gymnasium environment.

    It observes 21 numbers, as such an environment usually does: joint angles and speeds, positions
    of flange and target, and their difference. `FanucEnv` adds 15 numbers that ease learning.

    Args:
        robot: arm to simulate, equal to that of the batched environment.
        solver_iterations: number of iterations of the constraint solver per substep, equal to that
            of the batched environment.
        targets: reachable positions `[T, 3]`, metres.
        starts: joint angles to start from `[S, 6]`, rad.
    """

    def __init__(
        self,
        robot: Robot,
        solver_iterations: int,
        targets: NDArray[np.float32],
        starts: NDArray[np.float32],
    ) -> None:
        self._robot, self._targets, self._starts = robot, targets, starts
        self._arm = ArmGroup(robot, 1, solver_iterations)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (21,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Put the arm at a random start and draw a random target."""
        super().reset(seed=seed)
        self._steps = 0
        self._target = self._targets[self.np_random.integers(len(self._targets))]
        angles = self._starts[self.np_random.integers(len(self._starts))]
        self._arm.write(0, angles.tolist(), [0.0] * 6)
        return self._observe(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the arm for one control period."""
        before = self._distance
        low = (self._robot.lower - self._angles) * CONTROL_RATE
        high = (self._robot.upper - self._angles) * CONTROL_RATE
        self._arm.step([np.clip(action * self._robot.velocity, low, high).tolist()])
        self._steps += 1
        observation = self._observe()
        success = bool(self._distance < 0.015)
        reward = 5 * (before - self._distance) - 0.05 + 5 * success - 0.01 * (action**2).mean()
        return observation, float(reward), success, self._steps >= 150 and not success, {}

    def _observe(self) -> Observation:
        arm = self._arm
        self._angles, speeds = np.reshape(arm.read(), (2, 6))
        link = arm.client.getLinkState(arm.bodies[0], FLANGE_LINK, computeForwardKinematics=1)
        flange = np.array(link[4])
        error = self._target - flange
        self._distance = float(np.linalg.norm(error))
        return np.concatenate(
            (self._angles / np.pi, speeds / self._robot.velocity, flange, self._target, error)
        ).astype(np.float32)

    def close(self) -> None:
        """Free the simulator."""
        self._arm.close()
