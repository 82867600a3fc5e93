"""Deep deterministic policy gradient.

Source: Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase

from agents import hyperparameters as hp
from agents.modules.deterministic import DeterministicActorCritic
from agents.modules.encoders import Encoder
from agents.modules.networks import Critics, frozen
from torchrl_gpu.acting.exploration import Exploration, MixedNoise
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
        max_gradient_norm: actor and critic are separate groups.
    """

    hidden_sizes: hp.ActorCriticSizes = (256, 256)
    noise_range: tuple[hp.NonNegative, hp.NonNegative] | None = None
    batch_size: hp.BatchSize = 256
    utd_ratio: hp.UTDRatio = 1.0

    def build_critic(self, encoder: Encoder, action_dim: int) -> Critics:
        """Return a new critic of actions in [-1, 1]."""
        return Critics(encoder, action_dim, self.hidden_sizes, members=1)

    def build_exploration(self) -> Exploration:
        """Return Gaussian noise, or noise that differs between the environments."""
        if self.noise_range is None:
            return super().build_exploration()
        return MixedNoise(*self.noise_range)

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
