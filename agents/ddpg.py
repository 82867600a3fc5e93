"""Deep deterministic policy gradient.

Source: Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torchrl.data import Composite, TensorSpec

from agents import hyperparameters as hp
from agents.modules.deterministic import DeterministicActor, DeterministicActorCritic
from agents.modules.encoders import DEFAULT_ENCODER
from agents.modules.networks import Critics, frozen
from agents.modules.optimization import TargetNetwork, parameter_groups
from torchrl_gpu.acting.exploration import GaussianNoise, MixedNoise
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.learner import Losses


class DDPG(DeterministicActorCritic):
    """Off-policy agent for continuous actions: deterministic actor, one critic.

    Gaussian noise, independent at each step, explores. The paper uses Ornstein-Uhlenbeck noise,
    which needs a state per environment; TD3 (arXiv 1802.09477, section 6.1) found no benefit in it.

    Args:
        noise_range: standard deviation of the exploration noise in the first and in the last
            environment, each at least 0, for actions in [-1, 1]; those between are evenly spaced
            (mixed exploration of PQL, arXiv 2307.12983). None for the same noise in all
            environments, which changes over frames.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})

    @checked
    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        *,
        hidden_sizes: hp.ActorCriticSizes = (256, 256),
        encoder: hp.EncoderSetting = DEFAULT_ENCODER,
        learning_rate: hp.LearningRate = 1e-3,
        learning_rate_end: hp.LearningRateEnd = None,
        learning_rate_frames: hp.LearningRateFrames = None,
        gamma: hp.Gamma = 0.99,
        target_rate: hp.TargetRate = 0.005,
        max_gradient_norm: hp.GradientNorm = None,
        saturation_penalty: hp.SaturationPenalty = 0.0,
        noise_start: hp.NoiseStart = 0.3,
        noise_end: hp.NoiseEnd = 0.1,
        noise_frames: hp.NoiseFrames = 10_000,
        noise_range: tuple[hp.NonNegative, hp.NonNegative] | None = None,
        batch_size: hp.BatchSize = 256,
        utd_ratio: hp.UTDRatio = 1.0,
        n_step: hp.NStep = 1,
    ) -> None:
        super().__init__(observation_spec, action_spec, device, encoder)
        self.gamma = gamma
        self.max_gradient_norm = max_gradient_norm
        self.saturation_penalty = saturation_penalty
        self.batch_size = batch_size
        self.utd_ratio = utd_ratio
        self.n_step = n_step

        actor_encoder, critic_encoder = self.build_encoders()
        action_dim = action_spec.shape[-1]
        self.actor = DeterministicActor(actor_encoder, action_dim, hidden_sizes, device)
        self.target_actor = TargetNetwork(self.actor, target_rate)
        noise = (
            GaussianNoise(LinearSchedule(noise_start, noise_end, noise_frames))
            if noise_range is None
            else MixedNoise(*noise_range)
        )
        self.policy = self.build_policy(self.actor, noise)
        self.critic = Critics(critic_encoder, action_dim, hidden_sizes, device, members=1)
        self.target_critic = TargetNetwork(self.critic, target_rate)
        self.optimizer = adam(parameter_groups(self.actor, self.critic), learning_rate, device)
        self.schedule_learning_rate(learning_rate_end, learning_rate_frames)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic` and `loss/actor`, and the mean value."""
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))

        with torch.no_grad():
            # y = r + gamma (1 - terminated) Q'(s', mu'(s')): a time limit does not terminate
            next_value = self.target_critic(after, self.target_actor(after)).squeeze(0)
            target = after.get("reward") + self.bootstrap_discount(batch) * next_value

        # L = E[(Q(s, a) - y)^2]                                                   (eq. 4, 5)
        value = self.critic(batch, action).squeeze(0)
        critic_loss = F.mse_loss(value, target)

        # J = E[Q(s, mu(s))], whose gradient is eq. 6
        raw_action = self.actor.raw(batch)
        actor_loss = -frozen(self.critic, batch, raw_action.tanh()).mean()
        actor_loss = actor_loss + self.saturation_loss(raw_action)

        return Losses(
            terms={"loss/critic": critic_loss, "loss/actor": actor_loss},
            metrics={"ddpg/value": value.detach().mean()},
        )
