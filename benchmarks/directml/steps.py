"""The recorded operations of an agent's steps."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from agents.base import Agent
from agents.modules import target_network
from benchmarks.directml.operations import RecordedOperations
from benchmarks.fixture import build_agent, random_transitions, specs
from torchrl_gpu.devices.kinds import DirectML
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution import adam
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.replay import sum_tree
from trainers.training.experience import experience_of

NUM_ENVS, CAPACITY = 4, 10_000

# One update per batched step, or per rollout.
_SETTINGS: dict[str, Any] = {"utd_ratio": 1 / NUM_ENVS, "rollout_length": 16, "epochs": 1}
# The first updates allocate the state of the optimizers.
_UPDATES = 3


class Steps(NamedTuple):
    """The operations of each part of one step of training.

    Attributes:
        act: the policy in train mode, exploration included.
        store: a step of every environment into the replay buffer, a batch out of it, and the new
            priorities; on-policy, the rollout with its advantages.
        update: the gradient step, the optimizer and the target networks.
    """

    act: RecordedOperations
    store: RecordedOperations
    update: RecordedOperations


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore a warning that a loss gives only when its composite kernel runs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        yield


@contextmanager
def capabilities_of_directml() -> Iterator[None]:
    """Let the CPU have the capabilities of a DirectML device while agent and replay are built.

    Target networks ask for them at their first update.
    """
    with (
        patch.object(adam, "accelerator_of", DirectML),
        patch.object(target_network, "accelerator_of", DirectML),
        patch.object(sum_tree, "accelerator_of", DirectML),
    ):
        yield


@_without_warnings()
@capabilities_of_directml()
def record_steps(agent_class: type[Agent], actions: ActionKind, **settings: Any) -> Steps:
    """Return the operations of one step of an agent as it computes on a DirectML device.

    Args:
        agent_class: class of the agent.
        actions: kind of the actions, one of those that the agent produces.
        **settings: settings of the agent; unknown ones are ignored.
    """
    specs_of_agent = specs(NUM_ENVS, kind=actions)
    agent = build_agent(agent_class, *specs_of_agent, **{**_SETTINGS, **settings})
    experience = experience_of(agent, NUM_ENVS, CAPACITY, random_frames=0)
    execution = Execution(products="torch")  # oneDNN is for CPUs
    updates = 0
    while True:
        steps = Steps(RecordedOperations(), RecordedOperations(), RecordedOperations())
        transition = random_transitions(*specs_of_agent)
        with torch.no_grad(), steps.act:
            agent.policy(transition)
        with steps.store:
            experience.store(transition)
            batch = next(experience.batches(), None)
        if batch is None:
            continue
        with steps.update:
            update = execution.update(agent, batch)
        with steps.store:
            experience.update_priorities(batch, update.priorities)
        updates += 1
        if updates == _UPDATES:
            return steps
