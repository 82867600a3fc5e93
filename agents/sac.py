"""Soft actor-critic with twin critics and a learned temperature.

Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905. The
options marked FastSAC follow Seo et al., "Learning Sim-to-Real Humanoid Locomotion in 15 Minutes",
arXiv 2512.01996.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.base import OffPolicyAgent
from agents.modules.categorical_values import CategoricalValues
from agents.modules.clipped_normal import LOG_STD_MAX, LOG_STD_MIN
from agents.modules.encoders import Encodable, detached
from agents.modules.networks import Critics, EncodedMLP, frozen
from agents.modules.target_network import TargetNetwork
from agents.modules.twin_critics import TwinDistributions, Twins, TwinValues
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.arguments import Search
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.learner import Losses


class SAC(OffPolicyAgent):
    """Off-policy agent for continuous actions: maximum entropy, twin critics.

    Args:
        actor_layer_norm: apply layer normalization before each activation of the actor (FastSAC).
        critic_layer_norm: apply layer normalization before each activation of the critics
            (FastSAC).
        critic: output of the critics: `mean` for the value, as in the paper; `categorical` for its
            distribution over `atoms` (C51, arXiv 1707.06887; FastSAC).
        value_min: used only if `critic` is `categorical`.
        value_max: used only if `critic` is `categorical`.
        atoms: used only if `critic` is `categorical`.
        twins: combination of the two critics: `minimum`, as in the paper; `average` for the mean in
            the actor's loss and a separate target for each critic (FastSAC). The minimum of two
            distributions is the one with the lower mean.
        initial_temperature: initial weight of the entropy (temperature alpha), in units of reward.
        target_entropy: target entropy of the policy, in nats; None for minus the number of action
            dimensions, as in the paper.
        actor_period: number of gradient steps of the critics for each of actor and temperature
            (FastSAC).
        n_step: above 1, a target adds the entropy of the last observation alone, not that of the
            steps between.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})

    hidden_sizes: hp.ActorCriticSizes = (256, 256)
    activation: hp.Activation = "relu"
    actor_layer_norm: hp.Switch = False
    critic_layer_norm: hp.Switch = False
    critic: Literal["mean", "categorical"] = "mean"
    value_min: hp.ValueMin = -20.0
    value_max: hp.ValueMax = 20.0
    atoms: hp.Atoms = 101
    twins: Twins = "minimum"
    learning_rate: hp.LearningRate = 3e-4
    target_rate: hp.TargetRate = 0.005
    initial_temperature: Annotated[hp.Positive, Search(0.02, 1.0, log=True)] = 1.0
    target_entropy: float | None = None
    actor_period: Annotated[hp.Count, Search(1, 4)] = 1
    batch_size: hp.BatchSize = 256
    utd_ratio: hp.UTDRatio = 1.0

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a range without atoms, and more: see the base class."""
        super().check_combination(settings)
        if settings["critic"] == "categorical":
            CategoricalValues.check_combination(settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begin(update=0)
        action_dim = self.action_spec.shape[-1]
        target_entropy = self.target_entropy
        self._target_entropy = -float(action_dim) if target_entropy is None else target_entropy

        actor_encoder, critic_encoder = self.build_encoders()
        self.actor = TanhNormalActor(
            actor_encoder,
            2 * action_dim,
            self.hidden_sizes,
            self.actor_layer_norm,
            self.activation,
        )
        self.policy = self.build_policy(self.actor)
        if self.critic == "categorical":
            categories = CategoricalValues(self.value_min, self.value_max, self.atoms)
            self.twin_values: TwinValues = TwinDistributions(self.twins, categories)
        else:
            self.twin_values = TwinValues(self.twins)
            unused = ("value_min", "value_max", "atoms")
            self.unused |= dict.fromkeys(unused, "agent.critic=mean")
        self.critics = Critics(
            critic_encoder,
            action_dim,
            self.hidden_sizes,
            members=2,
            layer_norm=self.critic_layer_norm,
            outputs=self.twin_values.outputs,
            activation=self.activation,
        )
        self.target_critics = TargetNetwork(self.critics, self.target_rate)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(self.initial_temperature)))
        self.to(self.device)
        # Actor and critics may share an encoder, whose parameters `ModuleList` returns once.
        networks = nn.ModuleList([self.actor, self.critics])
        learned = [*networks.parameters(), self.log_temperature]
        self.optimizer = adam(learned, self.learning_rate, self.device)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic` and, in phase 0, `loss/actor` and `loss/temperature`.

        The phase is known to the host, so that phase 1 need not compute the losses that it lacks.
        Without gradients, the optimizer leaves actor and temperature as they are.
        """
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))
        temperature = self.log_temperature.detach().exp()

        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(after)
            # V(s') = min_i Q'_i(s', a') - alpha log pi(a'|s'),  a' ~ pi(.|s')      (eq. 3)
            # y = r + gamma (1 - terminated) V(s'): a time limit does not terminate
            target = self.twin_values.target(
                self.target_critics(after, next_action),
                bonus=-temperature * next_log_prob,
                reward=after.get("reward"),
                discount=self.bootstrap_discount(batch),
            )

        # J_Q = sum_i E[(Q_i(s, a) - y)^2]                                         (eq. 5)
        features = self.encode(self.critics, batch)
        outputs = self.critics(features, action)
        terms = {"loss/critic": self.twin_values.loss(outputs, target)}
        metrics = {
            "sac/value": self.twin_values.values(outputs.detach()).mean(),
            "sac/temperature": temperature,
        }
        if self.phase > 0:
            return Losses(terms, metrics)

        # J_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s)              (eq. 9)
        features = detached(features)
        new_action, log_prob = self.actor.sample(features)
        new_value = self.twin_values.value(frozen(self.critics, features, new_action))
        terms["loss/actor"] = (temperature * log_prob - new_value).mean()

        # J_alpha = E[-alpha (log pi(a|s) + target entropy)]                       (eq. 18)
        entropy = -log_prob.detach().mean()
        terms["loss/temperature"] = self.log_temperature.exp() * (entropy - self._target_entropy)
        metrics["sac/entropy"] = entropy
        return Losses(terms, metrics)

    def advance(self) -> None:
        """Go on to the next update of the period of the actor."""
        self._begin(self._update + 1)

    def training_state(self) -> dict[str, Any]:
        """Return the state of training, with the place in the period of the actor."""
        return {**super().training_state(), "update": self._update}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Resume from a state that `training_state` returned: see `Agent`."""
        super().load_training_state(state)
        self._begin(state["update"])

    def _begin(self, update: int) -> None:
        """Set the number of the next update in its period; the actor learns in the first."""
        self._update = update % self.actor_period
        self.phase = min(self._update, 1)


class TanhNormalActor(EncodedMLP):
    """A network that outputs a normal distribution, whose samples tanh squashes into [-1, 1].

    `outputs` is twice the number of action dimensions.
    """

    def distribution(self, observation: Encodable) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before tanh, `[*B, action_dim]` each."""
        mean, log_std = self(observation).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1]."""
        mean, log_std = self.distribution(observation)
        if deterministic:
            return mean.tanh()
        return torch.addcmul(mean, log_std.exp(), torch.randn_like(mean)).tanh()

    def sample(self, observation: Encodable) -> tuple[Tensor, Tensor]:
        """Return actions `[B, action_dim]` and log-probabilities `[B, 1]`, both with gradient."""
        return sample_tanh_normal(*self.distribution(observation))


def sample_tanh_normal(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions `[*B, D]` in [-1, 1], with their log-probabilities `[*B, 1]` (appendix C).

    Mean and log standard deviation before tanh are `[*B, D]`; both results have a gradient. The
    distributions of TorchRL and PyTorch read values back to the host; this function does not.
    """
    noise = torch.randn_like(mean)
    # u = mean + std * noise
    pre_tanh = torch.addcmul(mean, log_std.exp(), noise)
    # log N(u) = -noise^2 / 2 - log std - log(2 pi) / 2
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays finite
    log_derivative = 2.0 * (math.log(2.0) - pre_tanh - F.softplus(-2.0 * pre_tanh))
    # log pi(a) = sum_i log N(u_i) - log(1 - tanh(u_i)^2)
    return pre_tanh.tanh(), (log_normal - log_derivative).sum(dim=-1, keepdim=True)
