"""Replay buffers."""

import torch
from tensordict import TensorDict

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
