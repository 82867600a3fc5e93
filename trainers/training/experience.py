"""Storage of transitions between collector and agent: a replay buffer or a rollout.

Both have the same methods: `store` takes every transition, and `batches` yields those that are due
for updates after it.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.checkpoints.contents import check_count, check_like
from torchrl_gpu.datasets.demonstrations import check_demonstrations
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER, Execution
from torchrl_gpu.execution.step import checked_batch
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.rollout import RolloutBuffer
from torchrl_gpu.replay.shares import load_share
from trainers.training.demonstrations import Demonstrations, demonstrations_of_batch

logger = logging.getLogger(__name__)

# States of the saved parts of a replay or an open rollout, oldest first.
Parts: TypeAlias = Sequence[Mapping[str, Any]]

_USUAL = Capabilities()  # of an environment without frame stacks and action table

# Larger than the ratios of updates to frames that runs are saved with.
_LARGE_RATIO = 64


class ReplayExperience:
    """Experience of an off-policy agent: a replay buffer, with a fixed ratio of updates to frames.

    Args:
        agent: agent that builds the replay buffer.
        frames_per_step: number of environment steps in a batched step of all processes.
        capacity: maximum number of observations in the replay buffer.
        random_frames: number of environment steps before the first update.
        execution: execution that draws the batches.
        can: capabilities of the environment, with its frame stacks and its action table.

    Attributes:
        replay: replay buffer of the agent.
        demonstrations: demonstrations that every batch has a share of; None without them.
        memory: lines about the memory of the buffers, until they are announced.
    """

    def __init__(
        self,
        agent: OffPolicyAgent,
        frames_per_step: int,
        capacity: int,
        random_frames: int,
        execution: Execution,
        can: Capabilities,
    ) -> None:
        self.agent = agent
        self._execution = execution
        self.random_frames = random_frames
        self.replay = agent.build_replay(capacity, can.frame_stacks)
        self.memory: Sequence[str] = [self.replay.memory]
        self.demonstrations: Demonstrations | None = None
        if agent.demonstrations is not None:
            self.demonstrations = Demonstrations(agent, self.replay, can.action_table)
            self.memory = [self.replay.memory, self.demonstrations.memory]
        self._source: ReplayBuffer | Demonstrations = self.demonstrations or self.replay
        self._frames_per_step = frames_per_step
        # Frames since the first update was due; below 0 before it.
        self._frames = -random_frames
        self._updates = 0

    def store(self, transition: TensorDictBase) -> None:
        """Add the transitions `[R]` of one step to the replay buffer."""
        self.replay.extend(transition)
        self._frames += self._frames_per_step

    def batches(self) -> Iterator[TensorDictBase]:
        """Yield as many random batches as the ratio of updates to frames demands.

        Batches that are due before the first transition follow after it.
        """
        if self._updates == self._updates_due() or self.agent.processes.any(self.replay.is_empty):
            return
        while self._updates < self._updates_due():
            self._updates += 1
            yield self._execution.draw(self._source, self.agent.batch_size)

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Set the priorities `[B]` of a batch after its update; None if the agent computes none."""
        self._source.update_priorities(batch, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return the frames since the first update was due, and the number of updates owed."""
        return {"frames": self._frames, "owed": self._updates_due() - self._updates}

    def part(self, since: tuple[int, ...]) -> ReplayPart:
        """Return the contents of the replay buffer since an earlier part; if empty, all of them."""
        return self.replay.part(since)

    def load_state_dict(self, state: dict[str, Any], parts: Parts | None) -> None:
        """Restore the replay buffer; if it was not saved, `random_frames` new steps come first."""
        self._check(state)
        if parts is not None:
            self.replay.load_state_dict(*parts)
            self._go_on(state)

    def divide(self, state: dict[str, Any], replays: Sequence[Parts] | None) -> None:
        """Take a share of a run that another number of processes saved; see `load_state_dict`."""
        self._check(state)
        if replays is not None:
            processes = self.agent.processes
            load_share(self.replay, replays, processes.rank, processes.count)
            self._go_on(state)

    def _check(self, state: Mapping[str, Any]) -> None:
        check_count(state["frames"], "frames since the first update", low=-(10**12))
        # A batched step owes its updates at most, by the ratio of the saved run.
        most = math.ceil(self._frames_per_step * max(self.agent.utd_ratio, _LARGE_RATIO)) + 100
        check_count(state["owed"], "updates owed", high=most)

    def _go_on(self, state: Mapping[str, Any]) -> None:
        # Updates of earlier frames stay as they were, even if the ratio is another one.
        self._frames = state["frames"]
        self._updates = self._updates_due() - state["owed"]

    def forget_episodes(self) -> None:
        """Keep all transitions: the replay buffer detects where an episode breaks off."""

    def _updates_due(self) -> int:
        return max(0, int(self._frames * self.agent.utd_ratio))


class RolloutExperience:
    """Experience of an on-policy agent: one rollout of its current policy at a time.

    `execution` runs the updates of the agent.
    """

    random_frames = 0
    demonstrations: Demonstrations | None = None
    memory: Sequence[str] = ()

    def __init__(self, agent: OnPolicyAgent, execution: Execution) -> None:
        self.agent = agent
        self.execution = execution
        self.buffer = RolloutBuffer(agent.rollout_length, agent.observation_spec, agent.device)
        rows, count = agent.rollout_length * agent.action_spec.shape[0], agent.processes.count
        if agent.batch_size > rows and agent.processes.is_writer:
            text = "agent.batch_size=%d: a rollout has %d transitions, all of them in one batch"
            logger.warning(text, agent.batch_size * count, rows * count)

    def store(self, transition: TensorDictBase) -> None:
        """Add the transitions `[R]` of one step to the rollout."""
        self.buffer.extend(transition)

    def batches(self) -> Iterator[TensorDictBase]:
        """Yield the minibatches of a complete rollout for each epoch; nothing before its end.

        All minibatches have one size, so that every update is the same computation: the rollout
        divided into the fewest equal parts of at most `batch_size`. The few transitions of the
        remainder differ from epoch to epoch.
        """
        if not self.buffer.is_full:
            return
        # As in the updates, whose probabilities are divided by those found here.
        with self.execution.active(self.agent):
            prepared = self.agent.prepare(self.buffer.rollout())
            rollout = checked_batch(self.agent, "prepare", prepared).flatten()
        count = math.ceil(len(rollout) / self.agent.batch_size)
        size = len(rollout) // count
        for _ in range(self.agent.epochs):
            order = torch.randperm(len(rollout), device=self.agent.device)
            for index in order[: count * size].split(size):
                # Faster than `rollout[index]`, which also derives the shape of the result.
                rows = partial(torch.index_select, dim=0, index=index)
                yield rollout.apply(rows, batch_size=[size])

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Do nothing: a rollout has no priorities."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the progress is the open rollout."""
        return {}

    def part(self, since: tuple[int, ...]) -> ReplayPart:
        """Return the open rollout, which is always saved as a whole."""
        return self.buffer.part()

    def load_state_dict(self, state: dict[str, Any], parts: Parts | None) -> None:
        """Restore the open rollout, or begin a new one."""
        stored = parts[-1] if parts else {}
        if stored:
            self._check(stored)
        self.buffer.load_state_dict(stored)

    def divide(self, state: dict[str, Any], replays: Sequence[Parts] | None) -> None:
        """Begin a new rollout, because new episodes begin."""
        self.buffer.clear()

    def _check(self, stored: Mapping[str, Any]) -> None:
        """Compare a rollout with the observations and actions of the agent."""
        rows = self.agent.observation_spec.shape
        observed = self.agent.observation_spec.zero().to_dict()
        reward = torch.zeros(*rows, 1)
        flags = dict.fromkeys(("terminated", "truncated", "done"), reward.bool())
        step = {**observed, "action": self.agent.action_spec.zero()}
        step["next"] = {**observed, "reward": reward, **flags}
        if "active" in stored:
            step["active"] = flags["done"]
        steps = stored["action"].shape[0]
        expected = TensorDict(step, rows).expand(steps, *rows).to_dict()
        check_like(stored, expected, "the saved rollout")

    def forget_episodes(self) -> None:
        """Drop the open rollout: its next step would belong to another episode."""
        self.buffer.clear()


Experience = ReplayExperience | RolloutExperience


def check_updates(
    agent: type[Agent],
    agent_setting: Callable[[str], Any],
    trainer_setting: Callable[[str], Any],
    frames_per_step: int,
) -> None:
    """Refuse a run that would end before its first update, or without its demonstrations."""
    if issubclass(agent, OnPolicyAgent):
        steps = agent_setting("rollout_length")
        first, why = steps * frames_per_step, f"agent.rollout_length={steps}"
    elif issubclass(agent, OffPolicyAgent):
        if (path := agent_setting("demonstrations")) is not None:
            demonstrations_of_batch(
                agent_setting("demonstration_share"), agent_setting("batch_size")
            )
            check_demonstrations(path)
        batch_size, ratio = agent_setting("batch_size"), agent_setting("utd_ratio")
        if batch_size > (capacity := trainer_setting("replay_capacity")):
            raise ConfigurationError(
                f"trainer.replay_capacity={capacity}: the replay is smaller than a batch, "
                f"agent.batch_size={batch_size}"
            )
        random_frames = trainer_setting("random_frames")
        first = random_frames + math.ceil(1 / ratio)
        why = f"trainer.random_frames={random_frames}, agent.utd_ratio={ratio:g}"
    else:
        return
    total_frames = trainer_setting("total_frames")
    if math.ceil(total_frames / frames_per_step) * frames_per_step < first:
        raise ConfigurationError(
            f"trainer.total_frames={total_frames}: the run would end before its first update, "
            f"which takes {first} frames ({why})"
        )


def learned_transitions(agent: Agent, frames: int, random_frames: int, frames_per_step: int) -> int:
    """Return the number of transitions in all batches of a run in this process."""
    if isinstance(agent, OnPolicyAgent):
        rollouts = frames // (agent.rollout_length * frames_per_step)
        return rollouts * agent.rollout_length * agent.action_spec.shape[0] * agent.epochs
    if isinstance(agent, OffPolicyAgent):
        return int(max(0, frames - random_frames) * agent.utd_ratio) * agent.batch_size
    return 0


def experience_of(
    agent: Agent,
    frames_per_step: int,
    capacity: int,
    random_frames: int,
    execution: Execution = EAGER,
    can: Capabilities = _USUAL,
) -> Experience:
    """Build the experience of an agent: a replay buffer if it is off-policy, else a rollout.

    The arguments are those of `ReplayExperience` and of `RolloutExperience`.
    """
    if isinstance(agent, OnPolicyAgent):
        return RolloutExperience(agent, execution)
    if isinstance(agent, OffPolicyAgent):
        return ReplayExperience(agent, frames_per_step, capacity, random_frames, execution, can)
    raise ConfigurationError(
        f"agent: {type(agent).__name__} must derive from OffPolicyAgent or OnPolicyAgent"
    )
