"""Deep deterministic policy gradient.

Source: Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from tensordict import TensorDictBase
from torchrl.data import Composite, TensorSpec

from agents.base import Losses
from agents.modules.deterministic import DeterministicActor, DeterministicActorCritic
from agents.modules.encoders import DEFAULT_ENCODER, EncoderFactory
from agents.modules.networks import Critics, LayerSizes, frozen
from agents.modules.optimization import TargetNetwork, parameter_groups
from torchrl_gpu.acting.exploration import GaussianNoise, MixedNoise
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam


class DDPG(DeterministicActorCritic):
    """Off-policy agent for continuous actions: deterministic actor, one critic.

    Gaussian noise, independent at each step, explores. The paper uses Ornstein-Uhlenbeck noise,
    which needs a state per environment; TD3 (arXiv 1802.09477, section 6.1) found no benefit in it.

    Args:
        observation_spec: spec of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, bounded and continuous, `[*B, action_dim]`.
        device: device of all parameters and computations.
        hidden_sizes: widths of the hidden layers, each at least 1; actor and critic have the same
            widths.
        encoder: factory of the encoders that turn observations into features for the networks, see
            `agents.modules.encoders`.
        learning_rate: learning rate of Adam, above 0; the initial rate where it follows a schedule.
        learning_rate_end: final learning rate of a linear schedule, at least 0; None for no
            schedule.
        learning_rate_frames: number of environment steps until the learning rate reaches
            `learning_rate_end`, at least 1; None for no schedule.
        gamma: discount factor per environment step, 0 to 1.
        target_rate: Polyak averaging rate of each target network, above 0 to 1; 1 copies the online
            network.
        max_gradient_norm: maximum norm of the gradient, above 0; a larger gradient is scaled down
            to it; None for no limit. Actor and critic are limited separately.
        saturation_penalty: weight of the mean squared action before tanh in the actor's loss, at
            least 0; keeps the actor away from the bounds of its actions, where the gradient of tanh
            vanishes (compare the action penalty of Plappert et al., arXiv 1802.09464).
        noise_start: initial standard deviation of the exploration noise, at least 0, for actions in
            [-1, 1].
        noise_end: final standard deviation of the exploration noise, at least 0, for actions in
            [-1, 1].
        noise_frames: number of environment steps over which the exploration noise changes linearly
            from `noise_start` to `noise_end`, at least 1.
        noise_range: standard deviation of the exploration noise in the first and in the last
            environment, each at least 0, for actions in [-1, 1]; those between are evenly spaced
            (mixed exploration of PQL, arXiv 2307.12983). None for the same noise in all
            environments, which changes over frames.
        batch_size: number of transitions per gradient step, at least 1.
        utd_ratio: number of gradient steps per environment step (update-to-data ratio), above 0.
        n_step: number of environment steps whose rewards a target sums (n-step return), at least 1.

    Raises:
        ConfigurationError: a hyperparameter is out of range, or a spec is not supported.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})

    @checked
    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        encoder: EncoderFactory = DEFAULT_ENCODER,
        learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3,
        learning_rate_end: Annotated[float, Field(ge=0.0)] | None = None,
        learning_rate_frames: Annotated[int, Field(ge=1)] | None = None,
        gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99,
        target_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005,
        max_gradient_norm: Annotated[float, Field(gt=0.0)] | None = None,
        saturation_penalty: Annotated[float, Field(ge=0.0)] = 0.0,
        noise_start: Annotated[float, Field(ge=0.0)] = 0.3,
        noise_end: Annotated[float, Field(ge=0.0)] = 0.1,
        noise_frames: Annotated[int, Field(ge=1)] = 10_000,
        noise_range: tuple[Annotated[float, Field(ge=0.0)], Annotated[float, Field(ge=0.0)]]
        | None = None,
        batch_size: Annotated[int, Field(ge=1)] = 256,
        utd_ratio: Annotated[float, Field(gt=0.0)] = 1.0,
        n_step: Annotated[int, Field(ge=1)] = 1,
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
        self.policy = PolicyWrapper(self.actor, observation_spec, action_spec, device, noise)
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
