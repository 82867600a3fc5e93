"""Collected transitions, kept until the agent has learned from them: a replay, or a rollout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.rollout import RolloutBuffer


class Experience(Protocol):
    """Takes in every transition and hands out the batches that are due for a gradient step."""

    random_frames: int

    def batches(self, transition: TensorDictBase) -> Iterator[TensorDictBase]:
        """Store a batched step of all robots; yield the batches that are due for learning."""
        ...

    def learned(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Take note of a gradient step.

        Args:
            batch: the batch of the step, as `batches` yielded it.
            priorities: of its transitions `[B]`; None where the agent computes none.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of learning, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any], stored: dict[str, Any] | None) -> None:
        """Go on from a state and the stored transitions; None where these were not kept."""
        ...

    def stored(self) -> dict[str, Any]:
        """Return all that is stored."""
        ...

    def forget_episodes(self) -> None:
        """Drop transitions that cannot be used without the rest of their episodes."""
        ...


class ReplayExperience:
    """Keeps the newest transitions and samples from all of them, at a fixed ratio of updates.

    Args:
        agent: samples its batches from this replay.
        num_envs: environments that act at the same time.
        capacity: observations to keep.
        random_frames: environment steps that are stored before learning starts.
    """

    def __init__(
        self, agent: OffPolicyAgent, num_envs: int, capacity: int, random_frames: int
    ) -> None:
        self.agent = agent
        self.num_envs = num_envs
        self.random_frames = random_frames
        self.replay = agent.build_replay(capacity, agent.action_spec.shape[0])
        # Since learning started: below 0 while it has not.
        self._frames = -random_frames
        self._updates = 0

    def batches(self, transition: TensorDictBase) -> Iterator[TensorDictBase]:
        """Store a step; yield as many batches as keep updates in proportion to frames."""
        self.replay.extend(transition)
        self._frames += self.num_envs
        due = self._updates_due() - self._updates
        self._updates += due
        for _ in range(due):
            yield self.replay.sample(self.agent.batch_size)

    def learned(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Hand the priorities of a batch to the replay."""
        self.replay.update_priorities(batch, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return the frames since learning started."""
        return {"frames": self._frames}

    def load_state_dict(self, state: dict[str, Any], stored: dict[str, Any] | None) -> None:
        """Go on; without its replay, a new one is filled before learning goes on."""
        if stored is not None:
            self.replay.load_state_dict(stored)
            # All that was due is done, also where another ratio holds from here on.
            self._frames = state["frames"]
            self._updates = self._updates_due()

    def stored(self) -> dict[str, Any]:
        """Return the replay."""
        return self.replay.state_dict()

    def forget_episodes(self) -> None:
        """Keep all transitions: the replay finds out by itself where an episode breaks off."""

    def _updates_due(self) -> int:
        return max(0, int(self._frames * self.agent.utd_ratio))


class RolloutExperience:
    """Keeps the steps of the present policy until there are enough, and learns from each alike.

    Args:
        agent: learns from these rollouts.
    """

    random_frames = 0

    def __init__(self, agent: OnPolicyAgent) -> None:
        self.agent = agent
        self.buffer = RolloutBuffer(agent.rollout_length, agent.observation_spec, agent.device)

    def batches(self, transition: TensorDictBase) -> Iterator[TensorDictBase]:
        """Store a step; at the end of a rollout, yield it in minibatches, some epochs long.

        All minibatches have the same size, so that an update is the same computation each time:
        `batch_size`, or as little less as divides the rollout. The few transitions that are left
        over differ from epoch to epoch.
        """
        self.buffer.extend(transition)
        if not self.buffer.is_full:
            return
        rollout = self.agent.prepare(self.buffer.rollout()).flatten()
        count = math.ceil(len(rollout) / self.agent.batch_size)
        size = len(rollout) // count
        for _ in range(self.agent.epochs):
            order = torch.randperm(len(rollout), device=self.agent.device)
            for index in order[: count * size].split(size):
                yield rollout[index]

    def learned(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Do nothing: each minibatch is used once in an epoch, whatever came of it."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: between rollouts there is nothing to know."""
        return {}

    def load_state_dict(self, state: dict[str, Any], stored: dict[str, Any] | None) -> None:
        """Go on within the rollout that was under way, or begin a new one."""
        if stored:
            self.buffer.load_state_dict(stored)

    def stored(self) -> dict[str, Any]:
        """Return the rollout under way."""
        return self.buffer.state_dict() if not self.buffer.is_full else {}

    def forget_episodes(self) -> None:
        """Drop the rollout under way: its next step would belong to another episode."""
        self.buffer.clear()


def experience_of(agent: Agent, num_envs: int, capacity: int, random_frames: int) -> Experience:
    """Return the experience that an agent learns from.

    Raises:
        ConfigurationError: the agent is of neither kind.
    """
    if isinstance(agent, OnPolicyAgent):
        return RolloutExperience(agent)
    if isinstance(agent, OffPolicyAgent):
        return ReplayExperience(agent, num_envs, capacity, random_frames)
    raise ConfigurationError(
        f"agent: {type(agent).__name__} has to be an OffPolicyAgent or an OnPolicyAgent"
    )
