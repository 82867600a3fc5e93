"""Replay buffers, and transitions for them."""

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Composite

from agents.base import Agent
from benchmarks.fixture import random_transitions
from torchrl_gpu.checkpoints.tensors import Pieces
from torchrl_gpu.replay.buffer import ReplayBuffer


def allocated_bytes(buffer: ReplayBuffer) -> int:
    """Return the size of all storage that the state of a buffer is a view of, or a copy."""
    values = buffer.part().state.values()
    views = (value.tensors[-1] if isinstance(value, Pieces) else value for value in values)
    return sum(view.untyped_storage().nbytes() for view in views)


@torch.no_grad()
def transition_of(agent: Agent) -> TensorDict:
    """Return a random transition of each environment, with the actions of the agent."""
    transition: TensorDict = agent.policy(
        random_transitions(agent.observation_spec, agent.action_spec)
    )
    return transition


class Stream:
    """Random transitions of a batched environment, with a record of all of them.

    The reward of a transition is its number, which identifies it in a sample. Episodes end at
    random. Interruptions at random restart all environments without a done flag. Reset steps are
    inactive ones between episodes, as in next-step autoreset.
    """

    def __init__(
        self,
        spec: Composite,
        done_probability: float,
        interruption_probability: float = 0.0,
        reset_steps: bool = False,
    ) -> None:
        self.spec = spec
        self.num_envs = spec.shape[0]
        self.done_probability = done_probability
        self.interruption_probability = interruption_probability
        self.reset_steps = reset_steps
        self.generator = torch.Generator().manual_seed(0)
        self.is_reset_step = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        self.root = self.first()
        self.steps: list[TensorDict] = []
        self.goes_on: list[Tensor] = []  # whether the next transition follows, bool `[num_envs]`

    def step(self) -> TensorDict:
        after = self.where(self.is_reset_step, self.first(), self.following())
        done = self.draw(self.done_probability) & ~self.is_reset_step
        terminated = done & self.draw(0.5)
        first = len(self.steps) * self.num_envs
        interrupted = self.draw(self.interruption_probability)[:1].expand_as(done)
        transition = self.root.clone()
        transition["action"] = self.action()
        if self.reset_steps:
            transition["active"] = ~self.is_reset_step
        transition["next"] = after.clone().update(
            {
                "reward": torch.arange(first, first + self.num_envs).float().unsqueeze(1),
                "terminated": terminated,
                "truncated": done & ~terminated,
                "done": done,
            }
        )
        self.steps.append(transition.clone())
        self.goes_on.append((~done & ~interrupted).squeeze(1))
        self.is_reset_step = done & ~interrupted & self.reset_steps
        restarts = interrupted | (done & ~self.is_reset_step)
        self.root = self.where(restarts, self.first(), after)
        return transition

    def first(self) -> TensorDict:
        """Return the first observations of episodes."""
        return self.spec.rand()

    def following(self) -> TensorDict:
        """Return observations that may follow the current ones."""
        return self.spec.rand()

    def action(self) -> Tensor:
        """Return random actions."""
        return 2.0 * torch.rand(self.num_envs, 2) - 1.0

    def draw(self, probability: float) -> Tensor:
        return torch.rand(self.num_envs, 1, generator=self.generator) < probability

    def where(self, mask: Tensor, chosen: TensorDict, other: TensorDict) -> TensorDict:
        return torch.where(mask.squeeze(1), chosen, other)

    def everything(self) -> TensorDict:
        """Return all transitions so far, with root and next observations."""
        return torch.cat(self.steps)
