"""Proximal policy optimization with clipped surrogate, for continuous and discrete actions.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv 1707.06347. Initialization
and order of operations: Huang et al., "The 37 Implementation Details of PPO", ICLR blog 2022.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor

from agents import hyperparameters as hp
from agents.base import OnPolicyAgent
from agents.modules.encoders import Encoder
from agents.modules.gae import generalized_advantage
from agents.modules.networks import EncodedMLP
from agents.modules.normalization import RewardNormalizer, weighted_moments
from agents.modules.stochastic_actors import (
    CategoricalActor,
    ClippedNormalActor,
    StochasticActor,
    orthogonal,
)
from agents.modules.transitions import check_transitions
from torchrl_gpu.arguments import Search
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.specs import ActionKind, action_kind
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.fitting import Fitting
from torchrl_gpu.execution.learner import Losses, Update

# Factor of each change of the adaptive learning rate, and its bounds.
_RATE_FACTOR = 1.5
_RATE_MIN, _RATE_MAX = 1e-5, 1e-2

# Minimum number of transitions that the networks process at once to prepare a rollout. A larger
# number costs memory in each rollout, a smaller one time.
_PREPARED_AT_ONCE = 4096


class PPO(OnPolicyAgent):
    """On-policy agent for continuous or discrete actions.

    Continuous actions are drawn from a normal distribution whose standard deviation does not depend
    on the observation, and are clipped to the bounds; see `agents.modules.clipped_normal`.

    Args:
        rollout_length: number of steps of every environment per rollout.
        epochs: number of passes over the transitions of each rollout.
        target_kl: target KL divergence of an adaptive learning rate, in nats, usually 0.01; None
            for a rate that does not adapt. After each gradient step the rate is divided by 1.5 if
            the divergence from the policy that acted exceeds twice the target, multiplied by 1.5 if
            it is below half the target, and kept within [1e-5, 1e-2].
        gae_lambda: lambda of generalized advantage estimation; 0 for one-step advantages, 1 for all
            remaining rewards of the rollout.
        clip_ratio: clipping range (epsilon) of the probability ratio around 1.
        value_clip: clipping range of a predicted value around its prediction before the first
            update on the rollout, in units of return; None for no clipping.
        entropy_coefficient: weight of the entropy bonus; the initial weight where it follows a
            schedule.
        entropy_coefficient_end: final weight of a linear schedule; None for no schedule.
        entropy_coefficient_frames: number of environment steps until the weight reaches
            `entropy_coefficient_end`; None for no schedule.
        value_coefficient: weight of the value loss.
        normalize_rewards: divide rewards by the running standard deviation of the discounted
            return.
        normalize_advantages: normalize advantages to mean 0 and variance 1 in each batch of two or
            more transitions.
        log_std_init: initial logarithm of the standard deviation of continuous actions in [-1, 1].
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous", "discrete"})
    added_keys = frozenset(
        {"log_prob", "value", "value_target", "advantage", "explained_variance", "row_weight"}
    )
    entropy_weight: Tensor = field(init=False)

    hidden_sizes: hp.ActorCriticSizes = (64, 64)
    activation: hp.Activation = "relu"
    rollout_length: Annotated[hp.Count, Search(16, 256, log=True)] = 128
    epochs: Annotated[hp.Count, Search(2, 20, log=True)] = 10
    batch_size: Annotated[hp.BatchSize, Search(64, 1024, log=True)] = 64
    learning_rate: hp.LearningRate = 3e-4
    target_kl: hp.Positive | None = None
    adam_epsilon: hp.AdamEpsilon = 1e-5
    gae_lambda: Annotated[hp.Share, Search(0.8, 1.0)] = 0.95
    clip_ratio: Annotated[hp.Positive, Search(0.1, 0.4)] = 0.2
    value_clip: hp.Positive | None = None
    entropy_coefficient: Annotated[hp.NonNegative, Search(0.0, 0.02)] = 0.0
    entropy_coefficient_end: hp.NonNegative | None = None
    entropy_coefficient_frames: hp.Count | None = None
    value_coefficient: hp.Positive = 0.5
    max_gradient_norm: hp.GradientNorm = 0.5
    normalize_rewards: hp.Switch = False
    normalize_advantages: bool = True
    log_std_init: Annotated[float, Field(ge=-5.0, le=2.0), Search(-2.0, 0.0)] = 0.0

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a schedule of an adaptive learning rate, and more: see the base class."""
        super().check_combination(settings)
        if settings["target_kl"] is not None and settings["learning_rate_end"] is not None:
            raise ConfigurationError(
                "agent.target_kl, agent.learning_rate_end: set one; the rate adapts or follows a "
                "schedule"
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        actor_encoder, critic_encoder = self.build_encoders()
        self.reward_normalizer: RewardNormalizer | None = None
        if self.normalize_rewards:
            self.reward_normalizer = RewardNormalizer(self.observation_spec.shape, self.gamma)
        is_discrete = action_kind(self.action_spec) == "discrete"
        outputs = self.action_spec.space.n if is_discrete else self.action_spec.shape[-1]

        def build(encoder: Encoder, outputs: int, output_gain: float) -> EncodedMLP:
            sizes = self.hidden_sizes
            network = EncodedMLP(encoder, outputs, sizes, activation=self.activation)
            return orthogonal(network, output_gain)

        # A last layer so small that no action stands out at first.
        network = build(actor_encoder, outputs, output_gain=0.01)
        if is_discrete:
            self.unused["log_std_init"] = "discrete actions"
            self.actor: StochasticActor = CategoricalActor(network)
        else:
            log_std = torch.full((outputs,), self.log_std_init)
            self.actor = ClippedNormalActor(network, log_std)
        self.policy = self.build_policy(self.actor)
        self.critic = build(critic_encoder, 1, output_gain=1.0)
        self._in_parts = Fitting("the values")
        self.entropy_schedule = self.build_schedule("entropy_coefficient")
        # The schedule determines it from the frames, so checkpoints do not save it.
        weight = torch.tensor(self.entropy_coefficient)
        self.register_buffer("entropy_weight", weight, persistent=False)
        self.to(self.device)
        self.optimizer = adam(self.parameters(), self.learning_rate, self.device, self.adam_epsilon)

    @property
    def rate(self) -> Tensor:
        """The current learning rate `[]`, a tensor that the optimizer reads at each step."""
        group = self.optimizer.param_groups[0]
        group["lr"] = torch.as_tensor(group["lr"], device=self.device)  # a user may set a number
        return group["lr"]

    @torch.no_grad()
    def prepare(self, rollout: TensorDictBase) -> TensorDictBase:
        """Return observations and actions of a rollout with log-probabilities and advantages.

        Images are shifted here, once per rollout and in place, so that the probabilities before and
        after an update are those of the same images. Also updates the running statistics of the
        normalizers with the rollout, and the weight of the entropy bonus by its schedule.

        Returns:
            `[T, num_envs]`: `log_prob` of the actions by the policy before the update, `value`,
            `value_target` and `advantage`; `explained_variance` of the whole rollout in every row;
            each `[T, num_envs, 1]`.
        """
        if rollout.names[-1] == "time":  # of TorchRL's collectors
            rollout = rollout.transpose(0, -1)
        flags = "terminated", "truncated"
        check_transitions(rollout, self.observation_spec, self.action_spec, flags)
        if self.augmentation is not None:
            for step in rollout.unbind(0):  # a copy of the whole rollout may not fit into memory
                step.update_(self.augmentation(step))
        if self.processes.any("active" in rollout) and "active" not in rollout:
            # All processes compute the same sums.
            rollout = rollout.copy().set("active", torch.ones_like(rollout.get(("next", "done"))))
        after = rollout.get("next")
        terminated, truncated = after.get("terminated"), after.get("truncated")
        reward, weight = after.get("reward"), _weight(rollout)
        if self.entropy_schedule is not None:
            self.entropy_weight.copy_(self.entropy_schedule(self.policy.frames))

        # The policy acted with the statistics before this rollout, so log-probabilities come first.
        log_prob = self._by_parts(self._log_prob, rollout)
        if self.normalizer is not None:
            self.normalizer.update(rollout, weight, self.processes)
        if self.reward_normalizer is not None:
            reward = self.reward_normalizer(reward, terminated | truncated, weight, self.processes)

        value, next_value = self._values(rollout)
        advantage = generalized_advantage(
            reward, value, next_value, terminated, truncated, self.gamma, self.gae_lambda
        )
        target = advantage + value
        errors = weighted_moments(advantage, weight, self.processes)
        targets = weighted_moments(target, weight, self.processes)
        unexplained = errors.variance / (targets.variance + 1e-8)
        kept = [*self.policy.in_keys, "action", "active"]
        return rollout.select(*kept, strict=False).update(
            {
                "log_prob": log_prob,
                "value": value,
                "value_target": target,
                "advantage": advantage,
                "explained_variance": (1.0 - unexplained).expand_as(value),
            }
        )

    def update(self, batch: TensorDictBase) -> Update:
        """Take a gradient step with rows of a prepared rollout: see `Agent.update`."""
        if "advantage" not in batch:
            raise ConfigurationError(
                "batch: advantage is missing; an update takes rows of agent.prepare(rollout)"
            )
        return super().update(batch)

    @torch.no_grad()
    def prepare_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Return rows `[B]` of a prepared rollout with entries that depend on several of them.

        `advantage` `[B, 1]` is normalized; `row_weight` `[B, 1]` is 0 in rows without a transition
        (`active` is False) and has mean 1, so that the mean of rows times weights is the mean over
        the transitions. A batch without `active` has no weights.
        """
        batch, weight = batch.copy(), _weight(batch)
        if not self.normalize_advantages and weight is None:
            return batch
        # Moments of the rows of all processes together: they round alike for any number of them.
        advantage = batch.get("advantage")
        if weight is None:
            deviation, mean = torch.std_mean(self.processes.gather(advantage), dim=0, correction=0)
        else:
            rows = self.processes.gather(torch.cat((advantage, weight), dim=1))
            number, mean, variance = weighted_moments(rows[:, :1], rows[:, 1:])
            deviation = variance.sqrt()
            batch.set("row_weight", weight * (len(rows) / torch.as_tensor(number).clamp(min=1.0)))
        if self.normalize_advantages and self.processes.count * len(batch) > 1:
            batch.set("advantage", (advantage - mean) / (deviation + 1e-8))
        return batch

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/policy`, with the entropy bonus, and `loss/value`, by its coefficient."""
        weight = batch.get("row_weight", None)

        def mean(rows: Tensor) -> Tensor:
            return rows.mean() if weight is None else (rows * weight).mean()

        observation = self.encode(self.critic, batch)
        action = self.policy.from_bounds(batch.get("action"))
        log_prob, entropy = self.actor.evaluate(observation, action)
        advantage = batch.get("advantage")

        # r(theta) = pi(a|s) / pi_old(a|s)                                          (section 3)
        log_ratio = log_prob - batch.get("log_prob")
        ratio = log_ratio.exp()
        # L^CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)]                 (eq. 7)
        clipped_ratio = ratio.clamp(1.0 - self.clip_ratio, 1.0 + self.clip_ratio)
        policy_loss = -mean(torch.minimum(ratio * advantage, clipped_ratio * advantage))

        # L^VF = E[(V(s) - V_target)^2]                                             (section 5)
        value, target = self.critic(observation), batch.get("value_target")
        value_error = (value - target).square()
        if self.value_clip is not None:
            old_value = batch.get("value")
            # The larger error of the value and of the value clipped around its old prediction.
            near_value = old_value + (value - old_value).clamp(-self.value_clip, self.value_clip)
            value_error = torch.maximum(value_error, (near_value - target).square())

        with torch.no_grad():
            # KL(pi_old, pi) = E[(r - 1) - log r] under actions of pi_old: never negative, and of
            # less variance than E[-log r] (Schulman, "Approximating KL Divergence", 2020)
            kl = mean(ratio - 1.0 - log_ratio)
            clip_fraction = mean(((ratio - 1.0).abs() > self.clip_ratio).to(ratio.dtype))
        # L = L^CLIP - c_1 L^VF + c_2 S, to be maximized                            (eq. 9)
        entropy = mean(entropy)
        return Losses(
            terms={
                "loss/policy": policy_loss - self.entropy_weight * entropy,
                "loss/value": self.value_coefficient * mean(value_error),
            },
            metrics={
                "ppo/entropy": entropy.detach(),
                "ppo/kl": kl,
                "ppo/clip_fraction": clip_fraction,
                "ppo/explained_variance": batch.get("explained_variance").mean(),
            },
        )

    @torch.no_grad()
    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Adapt the learning rate to the KL divergence from the policy that acted."""
        metrics["ppo/learning_rate"] = self.rate.clone()
        if self.target_kl is not None:
            kl = metrics["ppo/kl"]
            slower = torch.where(kl > 2.0 * self.target_kl, 1.0 / _RATE_FACTOR, 1.0)
            faster = torch.where(kl < 0.5 * self.target_kl, _RATE_FACTOR, 1.0)
            self.rate.mul_(slower * faster).clamp_(_RATE_MIN, _RATE_MAX)

    def forget_episodes(self) -> None:
        """Reset the discounted returns of the reward normalizer."""
        if self.reward_normalizer is not None:
            self.reward_normalizer.discounted.zero_()

    def episode_state(self) -> dict[str, Tensor]:
        """Return the discounted returns of the reward normalizer."""
        if self.reward_normalizer is None:
            return {}
        return {"discounted": self.reward_normalizer.discounted}

    def _log_prob(self, batch: TensorDictBase) -> Tensor:
        action = self.policy.from_bounds(batch.get("action"))
        return self.actor.evaluate(batch, action)[0]

    def _values(self, rollout: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return the values of the observations before and after each step, `[T, num_envs, 1]`.

        Where a step terminates its episode, the value after it is that of no observation in
        particular: no future counts there.
        """
        after = rollout.get("next")
        value = self._by_parts(self.critic, rollout)
        if accelerator_of(self.device).reads_stall:
            return value, self._by_parts(self.critic, after)
        # The next step begins with the observation after this one, unless a time limit or the end
        # of the rollout came between. The host knows how few these observations are.
        next_value = torch.cat([value[1:], value[-1:]])
        is_last = after.get("truncated").squeeze(-1).clone()
        is_last[-1] = True
        next_value[is_last] = self._by_parts(self.critic, after[is_last])
        return value, next_value

    def _by_parts(
        self, function: Callable[[TensorDictBase], Tensor], rollout: TensorDictBase
    ) -> Tensor:
        """Return values `[*B, 1]` of the rows of a rollout `[*B]`, computed part by part."""
        rows = rollout.reshape(-1)
        values = self._in_parts(
            lambda size: torch.cat([function(part) for part in rows.split(size)]),
            min(len(rows), max(self.batch_size, _PREPARED_AT_ONCE)),
            self.device,
        )
        return values.reshape(*rollout.batch_size, 1)


def _weight(batch: TensorDictBase) -> Tensor | None:
    """Return the weight `[*B, 1]` of each row; None where all rows count the same."""
    active = batch.get("active", None)
    return None if active is None else active.to(torch.float32)
