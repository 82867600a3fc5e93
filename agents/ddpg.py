"""Deep deterministic policy gradient.

Source: Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971.
"""

from dataclasses import field
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.base import OffPolicyAgent
from agents.modules.encoders import Encoder, detached
from agents.modules.networks import Critics, DeterministicActor, frozen
from agents.modules.target_network import TargetNetwork
from torchrl_gpu.acting.exploration import Exploration, GaussianNoise, MixedNoise
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.learner import Losses


class DDPG(OffPolicyAgent):
    """Off-policy agent for continuous actions: deterministic actor, one critic.

    Gaussian noise, independent at each step, explores. The paper uses Ornstein-Uhlenbeck noise,
    which needs a state per environment; TD3 (arXiv 1802.09477, section 6.1) found no benefit in it.

    Args:
        max_gradient_norm: actor and critic are separate groups.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})
    actor: DeterministicActor = field(init=False)
    critic: nn.Module = field(init=False)
    target_networks: TargetNetwork = field(init=False)  # of actor and critic, in this order

    hidden_sizes: hp.ActorCriticSizes = (256, 256)
    activation: hp.Activation = "relu"
    learning_rate: hp.LearningRate = 1e-3
    target_rate: hp.TargetRate = 0.005
    target_period: hp.TargetPeriod = 1
    saturation_penalty: hp.SaturationPenalty = 0.0
    noise_start: hp.NoiseStart = 0.3
    noise_end: hp.NoiseEnd = 0.1
    noise_frames: hp.NoiseFrames = 10_000
    noise_range: Annotated[
        tuple[hp.NonNegative, hp.NonNegative] | None,
        Field(
            description="standard deviation of the exploration noise in the first and in the last "
            "environment, each at least 0, for actions in [-1, 1]; those between are evenly spaced "
            "(mixed exploration of PQL, arXiv 2307.12983). None for the same noise in all "
            "environments, which changes over frames"
        ),
    ] = None
    batch_size: hp.BatchSize = 256
    utd_ratio: hp.UTDRatio = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        actor_encoder, critic_encoder = self.build_encoders()
        action_dim = self.action_spec.shape[-1]
        self.actor = DeterministicActor(
            actor_encoder, action_dim, self.hidden_sizes, self.activation
        )
        if self.noise_range is None:
            schedule = LinearSchedule(self.noise_start, self.noise_end, self.noise_frames)
            noise: Exploration = GaussianNoise(schedule)
        else:
            noise = MixedNoise(*self.noise_range)
            unused = ("noise_start", "noise_end", "noise_frames")
            self.unused |= dict.fromkeys(unused, f"agent.noise_range={list(self.noise_range)}")
        self.policy = self.build_policy(self.actor, noise)
        self.critic = self.build_critic(critic_encoder, action_dim)
        # One copy of both: an encoder that they share is copied once.
        both = nn.ModuleDict({"actor": self.actor, "critic": self.critic})
        self.target_networks = TargetNetwork(both, self.target_rate, self.target_period)
        self.to(self.device)
        # The critic trains an encoder that both share.
        critic = dict.fromkeys(self.critic.parameters())
        actor = [parameter for parameter in self.actor.parameters() if parameter not in critic]
        groups = [{"params": actor}, {"params": list(critic)}]
        self.optimizer = adam(groups, self.learning_rate, self.device)

    def build_critic(self, encoder: Encoder, action_dim: int) -> nn.Module:
        """Return a new critic of actions in [-1, 1]."""
        return Critics(
            encoder, action_dim, self.hidden_sizes, members=1, activation=self.activation
        )

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic` and `loss/actor`, and the mean value."""
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))

        with torch.no_grad():
            # y = r + gamma (1 - terminated) Q'(s', mu'(s')): a time limit does not terminate
            target_actor, target_critic = self.target_networks.network.children()
            next_features = self.encode(target_critic, after)
            next_action = target_actor(next_features)
            next_value = target_critic(next_features, next_action).squeeze(0)
            target = after.get("reward") + self.bootstrap_discount(batch) * next_value

        # L = E[(Q(s, a) - y)^2]                                                   (eq. 4, 5)
        features = self.encode(self.critic, batch)
        value = self.critic(features, action).squeeze(0)
        critic_loss = F.mse_loss(value, target)

        # J = E[Q(s, mu(s))], whose gradient is eq. 6
        features = detached(features)
        raw_action = self.actor.raw(features)
        actor_loss = -frozen(self.critic, features, raw_action.tanh()).mean()
        actor_loss = actor_loss + self.saturation_loss(raw_action)

        return Losses(
            terms={"loss/critic": critic_loss, "loss/actor": actor_loss},
            metrics={"ddpg/value": value.detach().mean()},
        )

    def saturation_loss(self, raw_action: Tensor) -> Tensor:
        """Return a loss `[]` that keeps actions off their bounds, where tanh passes no gradient.

        Source: the action penalty of Plappert et al., arXiv 1802.09464, here on the actions before
        tanh, `[B, action_dim]`.
        """
        return self.saturation_penalty * raw_action.square().mean()
