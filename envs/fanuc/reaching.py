"""Episodes of arms that reach for targets: the part of an environment that every step needs."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from envs.fanuc.arms import Arms
from envs.fanuc.curriculum import Curriculum
from envs.fanuc.observation import observation_bounds
from envs.fanuc.robot import NUM_JOINTS
from envs.fanuc.targets import ReachableTargets
from torchrl_gpu.environments.environment import Environment

_FLAGS = ("success", "terminated", "truncated", "done")


class Task:
    """Starts, targets and ends of the episodes of all arms.

    Args:
        bank: starts, and targets relative to the base.
        shoulder: position of joint 1 in the base frame `[3]`, metres.
        curriculum: curriculum, which chooses the grades of the targets.
        max_episode_steps: maximum number of steps per episode.
        success_radius: maximum distance from flange to target that counts as success, metres.
        seed: random seed of starts and targets.
    """

    def __init__(
        self,
        bank: ReachableTargets,
        shoulder: Tensor,
        curriculum: Curriculum,
        max_episode_steps: int,
        success_radius: float,
        seed: int,
    ) -> None:
        device = shoulder.device
        self.per_grade = bank.per_grade
        self.targets = bank.positions.to(device) - shoulder
        self.starts = bank.starts.to(device)
        self.curriculum = curriculum
        self.max_episode_steps = max_episode_steps
        self.success_radius = success_radius
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Return joint angles `[count, 6]` and targets relative to joint 1 `[count, 3]`."""
        num_targets = (self.curriculum.level + 1) * self.per_grade
        starts = self.starts.index_select(0, self._rows(len(self.starts), count))
        return starts, self.targets.index_select(0, self._rows(num_targets, count))

    def _rows(self, below: int, count: int) -> Tensor:
        rows = torch.randint(below, (count,), generator=self.generator)
        return rows.to(self.targets.device)


class ReachingArms(Environment):
    """Some or all arms of a simulator, with the steps and resets of TorchRL.

    Args:
        arms: all arms of the simulator.
        rows: rows of this environment: all arms.
        task: task of all arms.
    """

    def __init__(self, arms: Arms, rows: slice, task: Task) -> None:
        device = arms.target.device
        super().__init__(device=device, batch_size=[rows.stop - rows.start])
        self._arms, self._rows, self._task = arms, rows, task
        shape = self.batch_size
        self._no = torch.zeros(*shape, 1, dtype=torch.bool, device=device)
        done = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        low, high = (
            torch.from_numpy(x).to(device).expand(*shape, -1) for x in observation_bounds()
        )
        self.observation_spec = Composite(
            observation=Bounded(low, high), success=done.clone(), shape=shape
        )
        self.action_spec = Bounded(
            -1.0, 1.0, shape=(*shape, NUM_JOINTS), dtype=torch.float32, device=device
        )
        # TorchRL's transforms of rewards ask for a spec without bounds.
        self.reward_spec = Unbounded((*shape, 1), dtype=torch.float32, device=device)
        self.full_done_spec = Composite(
            done=done, terminated=done.clone(), truncated=done.clone(), shape=shape
        )

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Let the workers of PyBullet begin a step: see `Environment.begin_step`."""
        self._arms.begin_step(self._rows, tensordict.get("action"))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, task = tensordict.get("action"), self._task
        outcome = self._arms.step(self._rows, action, task.max_episode_steps, task.success_radius)
        if not outcome.interrupted:
            task.curriculum.record(outcome.success, outcome.done)
        reward, success, truncated, done = (_tensor(x) for x in outcome[:4])
        return self._batch(
            {
                "observation": self._arms.observation[self._rows],
                "success": success,
                "reward": reward,
                "terminated": success.clone(),
                "truncated": truncated,
                "done": done,
            }
        )

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        rows = after.get("done").view(-1).nonzero().view(-1)
        if len(rows):
            self._restart(rows)
        return self.observe()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self._restart(torch.arange(self.batch_size.numel(), device=self.device))
        else:
            self._restart(mask.view(-1).nonzero().view(-1))
        return self.observe()

    def _restart(self, rows: Tensor) -> None:
        """Start a new episode for the arms with the given indices `[K]` in this environment."""
        starts, targets = self._task.draw(len(rows))
        self._arms.place(rows + self._rows.start, starts, targets)

    def observe(self) -> TensorDict:
        """Return the current observations as a reset would, for instance after loading a state.

        Returns:
            TensorDict `[*B]` with `observation`; `success` and the done keys are false.
        """
        tensors = {"observation": self._arms.observation[self._rows]}
        tensors |= dict.fromkeys(_FLAGS, self._no)
        return self._batch(tensors)

    def _set_seed(self, seed: int | None) -> None:
        self._task.generator.manual_seed(0 if seed is None else seed)


def _tensor(values: Any) -> Tensor:
    """Return numpy arrays as tensors in the same memory, and tensors unchanged."""
    # `torch.as_tensor` takes three times as long.
    return values if isinstance(values, Tensor) else torch.from_numpy(values)
