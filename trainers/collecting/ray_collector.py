"""Orders steps from collectors in processes of Ray, and hands them to the learner one by one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import RandomPolicy

from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from torchrl_gpu.devices.transfer import PackedTransfer
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Policy
from torchrl_gpu.timers import NO_TIMERS, Timers
from trainers.collecting.actor import Chunk, Order
from trainers.collecting.collectors import CANNOT_RESTART

if TYPE_CHECKING:
    from trainers.collecting.ray_environment import RayEnvironment

_CPU = torch.device("cpu")


class Plan(NamedTuple):
    """How far collectors run ahead of the learner.

    Attributes:
        steps: number of batched steps of a chunk.
        is_ahead: whether they collect a chunk while the agent learns from the one before.
    """

    steps: int
    is_ahead: bool


def plan_of(agent: Agent, frames_per_step: int, steps: int, max_age: int | None) -> Plan:
    """Return the longest chunks, of at most `steps`, whose weights are never older than the limit.

    The weights of a chunk of T steps are those before the last step of the chunk before the one
    before it, so its last step is learned from 2 T steps later. An on-policy agent learns from
    whole rollouts of its newest weights.

    `frames_per_step` is the number of environment steps in a batched step of all processes; `steps`
    and `max_age` are those of `RayCollectors`.
    """
    if isinstance(agent, OnPolicyAgent):
        return Plan(agent.rollout_length, is_ahead=False)
    assert isinstance(agent, OffPolicyAgent)
    updates = math.ceil(agent.utd_ratio * frames_per_step)  # after one batched step, at most
    if max_age is None or 2 * updates <= max_age:
        fits = steps if max_age is None else max_age // (2 * updates)
        return Plan(min(steps, fits), is_ahead=True)
    # The last of T steps is learned from after T - 1 others.
    return Plan(min(steps, 1 + max_age // updates), is_ahead=False)


# A chunk that was ordered: the reference of the part of each collector.
_Ordered: TypeAlias = tuple[Order, list[Any]]


class RayCollector:
    """Hands out the steps of all collectors, one batched step at a time.

    Collectors act with the weights of the order of a chunk. Those of an off-policy agent have one
    order more than the learner has received, so that they simulate while it learns. Which weights
    collect a step depends on numbers of steps alone, never on speeds: equal runs collect equal
    steps, as long as no collector is lost.

    The episodes of a lost collector end: the last step before is marked as truncated if it has not
    been handed out.

    Attributes:
        plan: how far collectors run ahead.
        to_device: transfer of chunks to the agent.
        to_host: transfer of weights from the agent; all others are those of `Collector`.
    """

    def __init__(
        self,
        env: RayEnvironment,
        agent: Agent,
        random_frames: int,
        updates: Callable[[], int],
        forget: Callable[[Tensor], object],
    ) -> None:
        self.env = env
        self.robots = Robots(env)
        self.to_device = PackedTransfer(agent.device)
        self.to_host = PackedTransfer(_CPU)
        self.steps = 0
        self.timers: Timers = NO_TIMERS
        self._agent = agent
        self._random_frames = random_frames
        self._updates = updates
        self._forget = forget
        self._frames_per_step = env.num_envs * agent.processes.count
        settings = env.settings
        self._max_age = settings.max_age
        self.plan = plan_of(agent, self._frames_per_step, settings.steps, settings.max_age)
        self._received: deque[tuple[int, TensorDictBase]] = deque()  # with versions
        self._ordered: _Ordered | None = None
        self._frames_ordered: int | None = None  # None before the first order
        self._weights: tuple[int, ray.ObjectRef[Any]] | None = None  # with their version

    @torch.no_grad()
    def step(self, policy: Policy) -> TensorDictBase:
        """Return the next transition `[*B]` on the agent's device."""
        if not self._received:
            lost = self._receive()
            if lost.any():
                self._forget(self._rows_of_agent(lost))
        version, transition = self._received.popleft()
        age = self._updates() - version
        if self._max_age is not None and age > self._max_age:  # by updates of somebody else
            self.restart()
            self._forget(self._rows_of_agent(torch.ones(self.env.num_envs, dtype=torch.bool)))
            return self.step(policy)
        self.steps += 1
        self.env.ages.append(age)
        if not isinstance(policy, RandomPolicy):
            self._agent.policy.frames.add_(self._frames_per_step)
        if self.plan.is_ahead and not self._received:
            self._end_episodes(transition, self._receive())
        return transition

    def begin(self, policy: Policy) -> None:
        """Do nothing: the collectors simulate anyway."""

    def restart(self, rows: Tensor | None = None) -> None:
        """Begin new episodes in all environments, by the seed of `env`; discard ordered steps."""
        if rows is not None:
            raise ConfigurationError(CANNOT_RESTART)
        self._received.clear()
        self._ordered = self._frames_ordered = self._weights = None
        self.env.call_each("restart", self.env.seeds())

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the environments: a resumed run begins new episodes."""
        progress = self.env.progress()
        return {"world": dict(progress), "is_part": True} if progress else {}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the progress, and return False: the caller begins new episodes."""
        if "world" in state:
            self.env.load_progress(state["world"])
        return False

    def _order(self) -> _Ordered:
        """Let all collectors begin the next chunk with the newest weights."""
        frames_per_step, steps = self._frames_per_step, self.plan.steps
        frames = self._frames_ordered
        if frames is None:
            frames = int(self._agent.policy.frames)
        self._frames_ordered = frames + steps * frames_per_step
        random_steps = -(-(self._random_frames - frames) // frames_per_step)
        version, weights = self._newest_weights()
        order = Order(steps, min(steps, max(0, random_steps)), frames, frames_per_step, version)
        return order, [process.ask("collect", weights, order) for process in self.env.members]

    def _newest_weights(self) -> tuple[int, ray.ObjectRef[Any]]:
        """Return the number of updates, and the reference of the weights after them."""
        version = self._updates()
        if self._weights is None or self._weights[0] != version:
            with self.timers("copy"):
                state = TensorDict(dict(self._agent.policy.state_dict()))
                weights = {name: leaf.numpy() for name, leaf in self.to_host(state).items()}
                self._weights = version, ray.put(weights)
        return self._weights

    def _receive(self) -> Tensor:
        """Receive the chunk that was ordered, and order the next one if the plan is ahead.

        Return the environments, bool `[num_envs]`, whose episodes were lost before this chunk.
        """
        order, references = self._ordered or self._order()
        self._ordered = None
        lost = torch.zeros(self.env.num_envs, dtype=torch.bool)
        parts: list[Chunk] = []
        with self.timers("simulate"):
            for number, reference in enumerate(references):
                process = self.env.members[number]
                while len(parts) == number:
                    try:
                        parts.append(process.result(reference))
                        process.losses = 0
                    except RayError as error:
                        self.env.replace(number, error)
                        lost[number * self.env.share : (number + 1) * self.env.share] = True
                        _, weights = self._newest_weights()
                        reference = process.ask("collect", weights, order)
        with self.timers("copy"):
            chunk = self.to_device(self._joined(parts))
        self._received.extend((order.version, step) for step in chunk.unbind(0))
        if self.plan.is_ahead:
            self._ordered = self._order()
        return lost

    def _joined(self, parts: Sequence[Chunk]) -> TensorDict:
        """Return the parts of all collectors as one chunk `[T, num_envs]` on the host."""
        shape = [self.plan.steps, self.env.num_envs]
        chunk = TensorDict({}, shape)
        for key in parts[0]:
            chunk.set(key, torch.from_numpy(np.concatenate([part[key] for part in parts], axis=1)))
        if (group := self.robots.group) is not None:
            robots = self.env.observation_spec[group].shape[1:]
            for nested in (chunk.get(group), chunk.get(("next", group))):
                nested.batch_size = torch.Size((*shape, *robots))
        return chunk

    def _end_episodes(self, transition: TensorDictBase, lost: Tensor) -> None:
        """Truncate the episodes of environments, bool `[num_envs]`, with a transition `[*B]`."""
        if not lost.any():
            return
        after, rows = transition.get("next"), lost.to(self._agent.device)
        groups = (after,) if self.robots.group is None else (after, after.get(self.robots.group))
        for group in groups:
            done = group.get("done")
            cut = rows.view(-1, *[1] * (done.dim() - 1)) & ~done
            group.set("truncated", group.get("truncated") | cut)
            group.set("done", done | cut)

    def _rows_of_agent(self, environments: Tensor) -> Tensor:
        """Return the rows of the robots of environments, bool `[num_envs]`."""
        robots = self._agent.action_spec.shape[0] // self.env.num_envs
        return environments.to(self._agent.device).repeat_interleave(robots)
