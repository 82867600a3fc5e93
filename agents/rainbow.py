"""Rainbow: six extensions of DQN in one agent; all but the categorical one can be switched off.

Source: Hessel et al., "Rainbow: Combining Improvements in Deep Reinforcement Learning",
arXiv 1710.02298.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.base import Losses
from agents.modules.categorical_values import CategoricalValues, divergence
from agents.modules.dueling import Dueling
from agents.modules.encoders import DEFAULT_ENCODER, Encoder, EncoderFactory
from agents.modules.networks import LayerSizes, mlp
from agents.modules.noisy import NoisyMLP
from agents.modules.optimization import TargetNetwork
from agents.modules.value_based import ValueBasedAgent
from torchrl_gpu.acting.exploration import EpsilonGreedy
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer


class Rainbow(ValueBasedAgent):
    """Off-policy agent for discrete actions: categorical distributions of the return.

    Args:
        observation_spec: spec of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, discrete, `[*B]`.
        device: device of all parameters and computations.
        hidden_sizes: widths of the hidden layers, each at least 1; dueling streams share all hidden
            layers but the last.
        encoder: factory of the encoders that turn observations into features for the networks, see
            `agents.modules.encoders`.
        value_min: lowest atom of the return distribution, in units of reward.
        value_max: highest atom of the return distribution, in units of reward, above `value_min`.
        atoms: number of atoms of the return distribution (N_atoms), at least 2.
        double: use double Q-learning: the online network chooses the next action and the target
            network evaluates it.
        dueling: use dueling streams: one for the value of the state, one for the advantages of the
            actions.
        noisy: explore by noisy layers, whose weights carry learned noise; False explores by
            epsilon-greedy actions.
        noise: initial standard deviation (sigma_0) of the weights of noisy layers, above 0, in
            units of 1 / sqrt(inputs of the layer); used only if `noisy` is True.
        prioritized: use prioritized replay.
        priority_exponent: exponent of the replay priorities (omega), 0 to 1; 0 samples uniformly, 1
            in proportion to the divergence.
        weight_exponent_start: initial importance-sampling exponent (beta), 0 to 1.
        weight_exponent_frames: number of environment steps of the policy over which the
            importance-sampling exponent rises linearly to 1, at least 1.
        n_step: number of environment steps whose rewards a target sums (n-step return), at least 1.
        learning_rate: learning rate of Adam, above 0; the initial rate where it follows a schedule.
        learning_rate_end: final learning rate of a linear schedule, at least 0; None for no
            schedule.
        learning_rate_frames: number of environment steps until the learning rate reaches
            `learning_rate_end`, at least 1; None for no schedule.
        adam_epsilon: term added to the denominator of Adam, above 0; the paper uses 1.5e-4, for
            pixels.
        gamma: discount factor per environment step, 0 to 1.
        target_rate: Polyak averaging rate of each target network, above 0 to 1; 1 copies the online
            network.
        target_period: number of updates (gradient steps) from one update of the target networks to
            the next, at least 1.
        max_gradient_norm: maximum norm of the gradient, above 0; a larger gradient is scaled down
            to it; None for no limit.
        epsilon_start: initial probability of a random action, 0 to 1; used only if `noisy` is
            False.
        epsilon_end: final probability of a random action, 0 to 1; used only if `noisy` is False.
        epsilon_frames: number of environment steps over which the probability of a random action
            changes linearly from `epsilon_start` to `epsilon_end`, at least 1; used only if `noisy`
            is False.
        batch_size: number of transitions per gradient step, at least 1.
        utd_ratio: number of gradient steps per environment step (update-to-data ratio), above 0.

    Raises:
        ConfigurationError: a hyperparameter is out of range, or a spec is not supported.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"discrete"})
    network: DistributionNetwork

    @checked
    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        *,
        hidden_sizes: LayerSizes = (128, 128),
        encoder: EncoderFactory = DEFAULT_ENCODER,
        value_min: float = -10.0,
        value_max: float = 10.0,
        atoms: Annotated[int, Field(ge=2)] = 51,
        double: bool = True,
        dueling: bool = True,
        noisy: bool = True,
        noise: Annotated[float, Field(gt=0.0)] = 0.5,
        prioritized: bool = True,
        priority_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5,
        weight_exponent_start: Annotated[float, Field(ge=0.0, le=1.0)] = 0.4,
        weight_exponent_frames: Annotated[int, Field(ge=1)] = 100_000,
        n_step: Annotated[int, Field(ge=1)] = 3,
        learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4,
        learning_rate_end: Annotated[float, Field(ge=0.0)] | None = None,
        learning_rate_frames: Annotated[int, Field(ge=1)] | None = None,
        adam_epsilon: Annotated[float, Field(gt=0.0)] = 1e-5,
        gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99,
        target_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01,
        target_period: Annotated[int, Field(ge=1)] = 1,
        max_gradient_norm: Annotated[float, Field(gt=0.0)] | None = 10.0,
        epsilon_start: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0,
        epsilon_end: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05,
        epsilon_frames: Annotated[int, Field(ge=1)] = 10_000,
        batch_size: Annotated[int, Field(ge=1)] = 64,
        utd_ratio: Annotated[float, Field(gt=0.0)] = 0.25,
    ) -> None:
        super().__init__(observation_spec, action_spec, device, encoder)
        self.is_double = double
        self.is_prioritized = prioritized
        self.priority_exponent = priority_exponent
        self.weight_exponent = LinearSchedule(weight_exponent_start, 1.0, weight_exponent_frames)
        self.gamma = gamma
        self.max_gradient_norm = max_gradient_norm
        self.batch_size = batch_size
        self.utd_ratio = utd_ratio
        self.n_step = n_step

        num_actions = action_spec.space.n
        self.values = CategoricalValues(value_min, value_max, atoms, device)
        self.network = DistributionNetwork(
            self.build_encoder(),
            num_actions,
            hidden_sizes,
            self.values,
            device,
            dueling=dueling,
            noise=noise if noisy else None,
        )
        self.target_network = TargetNetwork(self.network, target_rate, target_period)
        epsilon = LinearSchedule(epsilon_start, epsilon_end, epsilon_frames)
        self.policy = PolicyWrapper(
            self.network,
            observation_spec,
            action_spec,
            device,
            exploration=None if noisy else EpsilonGreedy(num_actions, epsilon),
        )
        self.optimizer = adam(self.network.parameters(), learning_rate, device, adam_epsilon)
        self.schedule_learning_rate(learning_rate_end, learning_rate_frames)

    def build_replay(
        self,
        capacity: int,
        num_envs: int,
        frame_stacks: Mapping[NestedKey, int] | None = None,
    ) -> ReplayBuffer:
        """Return a replay buffer for the batches of this agent: see `OffPolicyAgent`."""
        if not self.is_prioritized:
            return super().build_replay(capacity, num_envs, frame_stacks)
        return PrioritizedReplayBuffer(
            capacity,
            self.observation_spec,
            self.action_spec,
            num_envs,
            self.device,
            n_step=self.n_step,
            gamma=self.gamma,
            priority_exponent=self.priority_exponent,
            weight_exponent=lambda: self.weight_exponent(self.policy.frames),
            frame_stacks=frame_stacks,
        )

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/value`, weighted by importance, and the divergences as priorities."""
        after = batch.get("next")
        with torch.no_grad():
            next_logits = self.target_network(after)
            # a* = argmax_a q(s', a), q = z . p; every forward pass draws its own noise
            chooser = self.network(after) if self.is_double else next_logits
            next_action = self.values.mean(chooser).argmax(dim=-1)
            # d' = Phi_z (R + gamma^n (1 - terminated) z, p'(s', a*)): a time limit is no end
            target = self.values.project(
                _of_action(next_logits, next_action).softmax(dim=-1),
                after.get("reward"),
                self.bootstrap_discount(batch),
            )

        # L = E[w D_KL(d' || d(s, a))];  the divergence is the priority of the transition
        logits = _of_action(self.network(batch), batch.get("action"))
        loss = divergence(target, logits)
        return Losses(
            terms={"loss/value": self.weighted_mean(loss, batch)},
            metrics={
                "rainbow/value": self.values.mean(logits.detach()).mean(),
                "rainbow/divergence": loss.detach().mean(),
            },
            priorities=loss.detach().clamp(min=0.0),
        )


class DistributionNetwork(nn.Module):
    """The return distributions of all actions at once.

    Args:
        encoder: encoder of s.
        num_actions: number of actions.
        hidden_sizes: widths of the hidden layers; the streams share all but the last.
        values: atoms of the distributions.
        device: device of the parameters.
        dueling: use separate streams for the value and the advantages.
        noise: initial standard deviation of the weights of the streams, see `NoisyLinear`; None for
            streams without noise.
    """

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        hidden_sizes: Sequence[int],
        values: CategoricalValues,
        device: torch.device,
        *,
        dueling: bool,
        noise: float | None,
    ) -> None:
        super().__init__()
        *shared_sizes, stream_size = hidden_sizes
        self.num_actions = num_actions
        self.is_noisy = noise is not None
        self.values = values
        self.encoder = encoder
        self.shared = nn.Sequential()
        width = self.encoder.width
        if shared_sizes:
            *first, last = shared_sizes
            self.shared = mlp(width, first, last, device, head=False).append(nn.ReLU())
            width = last

        def stream(outputs: int) -> nn.Module:
            if noise is None:
                return mlp(width, [stream_size], outputs, device)
            return NoisyMLP(width, [stream_size], outputs, device, noise)

        atoms = len(values.atoms)
        self.head = stream(num_actions * atoms)
        if dueling:
            self.head = Dueling(stream(atoms), self.head, num_actions)

    def forward(self, observation: TensorDictBase, noisy: bool = True) -> Tensor:
        """Return logits `[*B, num_actions, atoms]`; every call draws new noise.

        Args:
            observation: observations, batch size `[*B]`.
            noisy: use the noise of noisy layers; if False, their mean weights alone.
        """
        features = self.shared(self.encoder(observation))
        logits = self.head(features, noisy) if self.is_noisy else self.head(features)
        return logits.unflatten(-1, (self.num_actions, -1))

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        """Return the actions `[*B]` int64 with the highest mean, without noise if deterministic."""
        logits = self(observation, noisy=not deterministic)
        return self.values.mean(logits).argmax(dim=-1)


def _of_action(logits: Tensor, action: Tensor) -> Tensor:
    """Return the logits `[B, atoms]` of actions `[B]` out of `[B, num_actions, atoms]`."""
    return logits.take_along_dim(action.view(-1, 1, 1), dim=1).squeeze(1)
