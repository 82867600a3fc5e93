"""Rainbow: six extensions of DQN in one agent; all but the categorical one can be switched off.

Source: Hessel et al., "Rainbow: Combining Improvements in Deep Reinforcement Learning",
arXiv 1710.02298.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.dqn import ValueBasedAgent
from agents.modules.categorical_values import CategoricalValues, divergence
from agents.modules.encoders import Encoder
from agents.modules.networks import mlp
from agents.modules.noisy import NoisyMLP
from torchrl_gpu.acting.exploration import Exploration
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.execution.learner import Losses
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer


class Rainbow(ValueBasedAgent):
    """Off-policy agent for discrete actions: categorical distributions of the return.

    Args:
        hidden_sizes: widths of the hidden layers, each at least 1; dueling streams share all hidden
            layers but the last.
        dueling: use dueling streams: one for the value of the state, one for the advantages of the
            actions.
        noisy: explore by noisy layers, whose weights carry learned noise; False explores by
            epsilon-greedy actions.
        noise: initial standard deviation (sigma_0) of the weights of noisy layers, in units of 1 /
            sqrt(inputs of the layer); used only if `noisy` is True.
        prioritized: use prioritized replay.
        priority_exponent: exponent of the replay priorities (omega); 0 samples uniformly, 1 in
            proportion to the divergence.
        weight_exponent_start: initial importance-sampling exponent (beta).
        weight_exponent_frames: number of environment steps of the policy over which the
            importance-sampling exponent rises linearly to 1.
        adam_epsilon: the paper uses 1.5e-4, for pixels.
        epsilon_start: used only if `noisy` is False.
        epsilon_end: used only if `noisy` is False.
        epsilon_frames: used only if `noisy` is False.
    """

    network: DistributionNetwork = field(init=False)

    hidden_sizes: hp.LayerSizes = (128, 128)
    value_min: hp.ValueMin = -10.0
    value_max: hp.ValueMax = 10.0
    atoms: hp.Atoms = 51
    dueling: hp.Switch = True
    noisy: hp.Switch = True
    noise: hp.Positive = 0.5
    prioritized: hp.Switch = True
    priority_exponent: hp.Share = 0.5
    weight_exponent_start: hp.Share = 0.4
    weight_exponent_frames: hp.Count = 100_000
    n_step: hp.NStep = 3
    learning_rate: hp.LearningRate = 5e-4
    adam_epsilon: hp.AdamEpsilon = 1e-5
    utd_ratio: hp.UTDRatio = 0.25

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a range without atoms, and more: see the base class."""
        super().check_combination(settings)
        CategoricalValues.check_combination(settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prioritized:
            weights = ("priority_exponent", "weight_exponent_start", "weight_exponent_frames")
            self.unused |= dict.fromkeys(weights, "agent.prioritized=false")

    def build_network(self, encoder: Encoder, num_actions: int) -> DistributionNetwork:
        """Return a new network of the return distributions of all actions."""
        return DistributionNetwork(
            encoder,
            num_actions,
            self.hidden_sizes,
            CategoricalValues(self.value_min, self.value_max, self.atoms),
            dueling=self.dueling,
            noise=self.noise if self.noisy else None,
        )

    def build_exploration(self, num_actions: int) -> Exploration | None:
        """Return epsilon-greedy exploration; None if noisy layers explore."""
        if self.noisy:
            epsilon = ("epsilon_start", "epsilon_end", "epsilon_frames")
            self.unused |= dict.fromkeys(epsilon, "agent.noisy=true")
            return None
        self.unused["noise"] = "agent.noisy=false"
        return super().build_exploration(num_actions)

    @property
    def replay_type(self) -> Callable[..., ReplayBuffer]:
        """Constructor of a prioritized replay buffer, unless it is turned off."""
        if not self.prioritized:
            return super().replay_type
        exponent = LinearSchedule(self.weight_exponent_start, 1.0, self.weight_exponent_frames)
        return partial(
            PrioritizedReplayBuffer,
            priority_exponent=self.priority_exponent,
            weight_exponent=lambda: exponent(self.policy.frames),
            processes=self.processes,
        )

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/value`, weighted by importance, and the divergences as priorities."""
        after, values = batch.get("next"), self.network.values
        with torch.no_grad():
            next_logits = self.target_network(after)
            # a* = argmax_a q(s', a), q = z . p; every forward pass draws its own noise
            chooser = self.network(after) if self.double else next_logits
            next_action = values.mean(chooser).argmax(dim=-1)
            # d' = Phi_z (R + gamma^n (1 - terminated) z, p'(s', a*)): time limits do not terminate
            target = values.project(
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
                "rainbow/value": values.mean(logits.detach()).mean(),
                "rainbow/divergence": loss.detach().mean(),
            },
            priorities=loss.detach().clamp(min=0.0),
        )


class DistributionNetwork(nn.Module):
    """The return distributions of all actions at once.

    Dueling streams: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning",
    arXiv 1511.06581.

    The arguments are an encoder of s, the number of actions, atoms, and settings of `Rainbow`, of
    which `noise` is None for layers without noise.
    """

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        hidden_sizes: Sequence[int],
        values: CategoricalValues,
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
        self.shared = mlp(encoder.width, shared_sizes, None)
        width = shared_sizes[-1] if shared_sizes else encoder.width

        def stream(outputs: int) -> nn.Module:
            if noise is None:
                return mlp(width, [stream_size], outputs)
            return NoisyMLP(width, [stream_size], outputs, noise)

        atoms = len(values.atoms)
        self.head = stream(num_actions * atoms)
        if dueling:
            self.head = nn.ModuleDict({"value": stream(atoms), "advantage": self.head})

    def forward(self, observation: Observations, noisy: bool = True) -> Tensor:
        """Return logits `[*B, num_actions, atoms]`, by new noise or the mean weights alone."""
        features = self.shared(self.encoder(observation))
        inputs = (features, noisy) if self.is_noisy else (features,)
        if not isinstance(self.head, nn.ModuleDict):
            return self.head(*inputs).unflatten(-1, (self.num_actions, -1))
        value = self.head["value"](*inputs).unsqueeze(-2)
        advantage = self.head["advantage"](*inputs).unflatten(-1, (self.num_actions, -1))
        # Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')                                  (eq. 9)
        return value + advantage - advantage.mean(dim=-2, keepdim=True)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return the actions `[*B]` int64 with the highest mean, without noise if deterministic."""
        logits = self(observation, noisy=not deterministic)
        return self.values.mean(logits).argmax(dim=-1)


def _of_action(logits: Tensor, action: Tensor) -> Tensor:
    """Return the logits `[B, atoms]` of actions `[B]` out of `[B, num_actions, atoms]`."""
    return logits.take_along_dim(action.view(-1, 1, 1), dim=1).squeeze(1)
