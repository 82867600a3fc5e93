"""Arms in PyBullet, simulated by worker processes."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.fanuc.arms import Arms
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.observation import ArmEncoder
from envs.fanuc.reward import Goal, Judgement, effort_of, judge
from envs.fanuc.robot import Robot
from envs.fanuc.worker_pool import WorkerPool

# Bytes that each arm takes, measured with 512 to 4096 arms.
BULLET_ARM_MEMORY: Final = 4_700 * 2**10

# Results of a step, which the workers write.
_RESULTS: Final = ("state", "observation", "distance")

# More arms per core raise the throughput further, but delay the steps of each arm.
ARMS_PER_CORE: Final = 32

Rows: TypeAlias = slice | NDArray[np.int64]


class BulletArms(Arms):
    """Arms in PyBullet, synchronised with their worker processes.

    The workers write to shared memory; this class copies it, so that a dying worker cannot corrupt
    a state. The states are float64. A step computes with numpy, which takes less than half the time
    of torch on so few values per arm.
    """

    device = torch.device("cpu")

    def __init__(self, robot: Robot, pool: WorkerPool, goal: Goal) -> None:
        self.geometry, self.goal = ArmGeometry(robot), goal
        self._pool = pool
        self._encode = ArmEncoder(robot)
        self._begun: Tensor | None = None  # the actions of the step in flight
        self.target = torch.from_numpy(self._pool.exchange.target.copy())
        self.steps = torch.zeros(len(self.target), 1, dtype=torch.int64)
        self.held = torch.zeros_like(self.steps)
        self._copy()

    def _copy(self) -> None:
        """Copy the results of a step from shared memory."""
        for name in _RESULTS:
            shared = getattr(self._pool.exchange, name)
            setattr(self, name, torch.from_numpy(shared.copy()))

    def _restore(self, names: Sequence[str], arms: Rows) -> None:
        """Overwrite rows of shared memory by those that this class has."""
        for name in names:
            getattr(self._pool.exchange, name)[arms] = getattr(self, name).numpy()[arms]

    def begin_step(self, action: Tensor) -> None:
        """Let the workers begin a step while the program computes: see `Arms.begin_step`."""
        self._pool.give_way()
        self._begin_step(action)

    def _begin_step(self, action: Tensor) -> None:
        """Let the workers begin a step; an unfinished one is undone."""
        if self._pool.recover():
            self._write(slice(None))
        self._pool.exchange.action[:] = action.detach().numpy()
        self._pool.begin_step()
        self._begun = action

    def step(self, action: Tensor, max_steps: int) -> Judgement:
        """Move all arms for one control period; see `Arms.step`.

        Arms whose worker died in this step keep their state; their episodes are truncated.
        """
        if self._begun is not action:
            self._begin_step(action)
        self._begun = None
        # While the workers simulate.
        before, effort = self.distance.numpy(), effort_of(action.detach().numpy())
        steps = self.steps.numpy() + 1
        lost = self._pool.finish_step()
        for arms in lost:
            self._restore(_RESULTS, arms)
        self._copy()
        self.steps = torch.from_numpy(steps)
        calm = self._calm()
        result = judge(
            self.goal,
            self.held.numpy(),
            before,
            self.distance.numpy(),
            self.observation.numpy(),
            None if calm is None else calm.numpy(),
            effort,
            steps >= max_steps,
            lost,
        )
        reward, success, truncated, done, self.held = map(torch.from_numpy, result[:5])
        self.terms = result.terms
        return Judgement(reward.float(), success, truncated, done, self.held, *result[5:])

    def place(self, mask: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest: see `Arms.place`."""
        rows = np.flatnonzero(mask.numpy())
        if not rows.size:  # a step in flight goes on
            return
        state, steps, held = self._copies("state", "steps", "held")
        state[rows, 0], state[rows, 1] = angles.numpy()[rows], 0
        steps[rows], held[rows] = 0, 0
        self.aim(mask, target)

    def aim(self, mask: Tensor, target: Tensor) -> None:
        """Give some arms other targets: see `Arms.aim`."""
        rows = np.flatnonzero(mask.numpy())
        goal, observation, distance = self._copies("target", "observation", "distance")
        goal[rows] = target.numpy()[rows]
        # Only some: encoding takes longer than all the rest.
        observation[rows], distance[rows] = self._encode(self.state.numpy()[rows], goal[rows])
        self._write(rows)

    def _copies(self, *names: str) -> list[NDArray[Any]]:
        """Replace tensors by copies, as those of earlier steps are kept; return their arrays."""
        arrays = [getattr(self, name).numpy().copy() for name in names]
        for name, array in zip(names, arrays, strict=True):
            setattr(self, name, torch.from_numpy(array))
        return arrays

    def _write(self, arms: Rows) -> None:
        """Write the state of some arms to shared memory; workers load it before the next step.

        A step in flight began from another state: the next one will undo it.
        """
        self._begun = None
        # The results as well: a worker whose arms are idle does not encode them.
        self._restore(("target", *_RESULTS), arms)
        self._pool.exchange.rewritten[arms] = 1

    def set_idle(self, mask: Tensor) -> None:
        """Leave out clients and workers whose arms are all idle: see `Arms.set_idle`."""
        self._pool.set_idle(mask.numpy())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state: see `Arms.load_state_dict`."""
        super().load_state_dict(state)
        self.set_idle(torch.zeros(len(self.target), dtype=torch.bool))
        self._write(slice(None))

    def close(self) -> None:
        """End the worker processes; may be called again."""
        self._begun = None
        self._pool.close()
