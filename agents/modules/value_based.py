"""The base class of agents that choose actions by their values."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field
from typing import Any, ClassVar

from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.base import OffPolicyAgent
from agents.modules.encoders import Encoder
from agents.modules.optimization import TargetNetwork
from torchrl_gpu.acting.exploration import EpsilonGreedy, Exploration
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam


class ValueBasedAgent(OffPolicyAgent):
    """A network that outputs the values of all actions, and its target network."""

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"discrete"})
    network: Any = field(init=False)
    target_network: TargetNetwork = field(init=False)

    double: hp.DoubleQ = True  # type: ignore[assignment]  # in place of nn.Module.double
    adam_epsilon: hp.AdamEpsilon = 1e-8
    target_rate: hp.TargetRate = 0.01
    target_period: hp.TargetPeriod = 1
    max_gradient_norm: hp.GradientNorm = 10.0
    epsilon_start: hp.EpsilonStart = 1.0
    epsilon_end: hp.EpsilonEnd = 0.05
    epsilon_frames: hp.EpsilonFrames = 10_000
    batch_size: hp.BatchSize = 64

    def __post_init__(self) -> None:
        """Build the networks, the policy and the optimizer."""
        super().__post_init__()
        num_actions = self.action_spec.space.n
        self.network = self.build_network(self.build_encoder(), num_actions)
        self.target_network = TargetNetwork(self.network, self.target_rate, self.target_period)
        self.policy = self.build_policy(self.network, self.build_exploration(num_actions))
        self.to(self.device)
        self.optimizer = adam(
            self.network.parameters(), self.learning_rate, self.device, self.adam_epsilon
        )

    @abstractmethod
    def build_network(self, encoder: Encoder, num_actions: int) -> nn.Module:
        """Return a new network of the values of all actions; it is the actor of the policy."""

    def build_exploration(self, num_actions: int) -> Exploration | None:
        """Return the exploration of the policy; None for a network that explores by itself."""
        epsilon = LinearSchedule(self.epsilon_start, self.epsilon_end, self.epsilon_frames)
        return EpsilonGreedy(num_actions, epsilon)

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target network."""
        self.target_network.update()
