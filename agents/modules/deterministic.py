"""Deterministic actors, and the base class of agents with a deterministic actor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.base import OffPolicyAgent
from agents.modules.encoders import Encoder
from agents.modules.networks import EncodedMLP
from agents.modules.optimization import TargetNetwork, parameter_groups
from torchrl_gpu.acting.exploration import Exploration, GaussianNoise
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam

# Bound of the initial weights of the last layer: the first actions lie near 0, where tanh is steep
# (Lillicrap et al., arXiv 1509.02971, section 7).
_LAST_LAYER_BOUND = 3e-3


class DeterministicActorCritic(OffPolicyAgent):
    """An actor, a critic that values its actions, and a target network for each.

    Attributes:
        actor: mu(s).
        target_actor: target network of the actor.
        critic: value of an action.
        target_critic: target network of the critic.
        optimizer: optimizer with one parameter group each for actor and critic.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})
    actor: DeterministicActor = field(init=False)
    target_actor: TargetNetwork = field(init=False)
    critic: nn.Module = field(init=False)
    target_critic: TargetNetwork = field(init=False)

    hidden_sizes: hp.ActorCriticSizes
    learning_rate: hp.LearningRate = 1e-3
    target_rate: hp.TargetRate = 0.005
    target_period: hp.TargetPeriod = 1
    saturation_penalty: hp.SaturationPenalty = 0.0
    noise_start: hp.NoiseStart = 0.3
    noise_end: hp.NoiseEnd = 0.1
    noise_frames: hp.NoiseFrames = 10_000

    def __post_init__(self) -> None:
        """Build the networks, the policy and the optimizer."""
        super().__post_init__()
        actor_encoder, critic_encoder = self.build_encoders()
        action_dim = self.action_spec.shape[-1]
        self.actor = DeterministicActor(actor_encoder, action_dim, self.hidden_sizes)
        self.target_actor = TargetNetwork(self.actor, self.target_rate, self.target_period)
        self.policy = self.build_policy(self.actor, self.build_exploration())
        self.critic = self.build_critic(critic_encoder, action_dim)
        self.target_critic = TargetNetwork(self.critic, self.target_rate, self.target_period)
        self.to(self.device)
        groups = parameter_groups(self.actor, self.critic)
        self.optimizer = adam(groups, self.learning_rate, self.device)

    @abstractmethod
    def build_critic(self, encoder: Encoder, action_dim: int) -> nn.Module:
        """Return a new critic of actions in [-1, 1]."""

    def build_exploration(self) -> Exploration:
        """Return the noise that the policy adds to its actions."""
        return GaussianNoise(LinearSchedule(self.noise_start, self.noise_end, self.noise_frames))

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target networks."""
        self.target_actor.update()
        self.target_critic.update()

    def saturation_loss(self, raw_action: Tensor) -> Tensor:
        """Return a loss `[]` that keeps actions off their bounds, where tanh passes no gradient.

        Source: the action penalty of Plappert et al., arXiv 1802.09464, here before tanh.

        Args:
            raw_action: actions before tanh, `[B, action_dim]`.
        """
        return self.saturation_penalty * raw_action.square().mean()


class DeterministicActor(EncodedMLP):
    """mu(s): a network that outputs one action, squashed into [-1, 1] by tanh.

    `outputs` is the number of action dimensions.
    """

    def __init__(self, encoder: Encoder, outputs: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__(encoder, outputs, hidden_sizes)
        for parameter in self.network[-1].parameters():
            nn.init.uniform_(parameter, -_LAST_LAYER_BOUND, _LAST_LAYER_BOUND)

    def forward(self, observation: Observations) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1]."""
        return self.raw(observation).tanh()

    def raw(self, observation: Observations) -> Tensor:
        """Return actions before tanh, `[*B, action_dim]`."""
        return super().forward(observation)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return `forward` in both modes: the policy wrapper adds the exploration noise."""
        return self(observation)
