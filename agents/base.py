"""What every agent offers to a trainer, whatever its algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.policy import PolicyWrapper

ActionKind = Literal["continuous", "discrete"]


class Agent(nn.Module, ABC):
    """An algorithm: how to act (`policy`) and how to learn from a batch (`update`).

    An agent knows neither the world nor the trainer. It says what it is by its attributes:

    Attributes:
        on_policy: whether it learns only from what its present policy has collected.
        actions: the kinds of actions it can produce.
        policy: acts, TensorDict in, TensorDict out; stochastic in train mode, greedy in eval mode.
        batch_size: transitions per gradient step.
        utd_ratio: gradient steps per environment step (update-to-data ratio).
    """

    on_policy: ClassVar[bool]
    actions: ClassVar[frozenset[ActionKind]]
    policy: PolicyWrapper
    batch_size: int
    utd_ratio: float

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
    ) -> None:
        super().__init__()
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.device = device

    @abstractmethod
    def loss(self, batch: TensorDictBase) -> TensorDict:
        """Return the scalar losses of a batch, each with its graph, by name."""

    @abstractmethod
    def update(self, batch: TensorDictBase) -> TensorDict:
        """Do one gradient step on a batch and return detached scalar metrics, by name.

        Args:
            batch: transitions `[batch_size]` on the agent's device, in TorchRL's layout:
                observations and `action` at the root; observations, `reward`, `terminated` and
                `truncated` (each `[batch_size, 1]`) under `next`.
        """

    @abstractmethod
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by name, so that a checkpoint holds their state."""

    def training_state(self) -> dict[str, Any]:
        """Return all that learning depends on: networks, targets, optimizers."""
        return {
            "networks": self.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers().items()},
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `training_state` returned.

        Raises:
            RuntimeError: the state belongs to networks of another shape.
        """
        self.load_state_dict(state["networks"])
        for name, optimizer in self.optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
