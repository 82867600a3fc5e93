"""The interface of all agents, and the gradient step that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.modules.encoders import DEFAULT_ENCODER, DetachedEncoder, Encoder, EncoderFactory
from agents.modules.training_state import (
    load_networks,
    load_optimizer,
    networks_state,
    place_optimizer,
)
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.environments.specs import ActionKind, action_kind
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution import EAGER, Execution
from torchrl_gpu.replay.buffer import ReplayBuffer


class Losses(NamedTuple):
    """Result of `Agent.loss`.

    Attributes:
        terms: scalar losses `[]` with their graph, by name (`loss/...`); a gradient step descends
            their sum.
        metrics: further detached scalars `[]`, by name.
        priorities: float32 `[B]`, at least 0, detached: the new priority of each transition of the
            batch in a prioritized replay; None for an agent that computes none.
    """

    terms: dict[str, Tensor]
    metrics: dict[str, Tensor]
    priorities: Tensor | None = None


class Update(NamedTuple):
    """Result of `Agent.update`.

    Attributes:
        metrics: detached scalars `[]` by name, the losses included.
        priorities: see `Losses`.
    """

    metrics: dict[str, Tensor]
    priorities: Tensor | None


class Agent(nn.Module, ABC):
    """An algorithm: how to act (`policy`) and how to learn from a batch (`loss`).

    An agent knows neither environment nor trainer. Write one as a subclass of `OffPolicyAgent` or
    `OnPolicyAgent`; its attributes describe its capabilities:

    Args:
        observation_spec: observations of the agent, batch size `[num_envs]`.
        action_spec: actions of the agent: bounded and continuous `[num_envs, action_dim]`, or
            discrete `[num_envs]`.
        device: device of all parameters and computations.
        encoder: builds the encoders of the networks and changes batches before a gradient step.

    Attributes:
        actions: the kinds of actions that the agent can produce.
        policy: acts, TensorDict in, TensorDict out; explores in train mode, greedy in eval mode.
        optimizer: of all parameters that learn.
        batch_size: transitions per gradient step.
        gamma: discount per environment step, 0 to 1.
        max_gradient_norm: the gradients of each parameter group of an optimizer are scaled down to
            this norm; None for no limit.

    Raises:
        ConfigurationError: the agent cannot produce actions of this kind.
    """

    actions: ClassVar[frozenset[ActionKind]]
    policy: PolicyWrapper
    optimizer: torch.optim.Optimizer
    batch_size: int
    gamma: float
    max_gradient_norm: float | None = None

    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        encoder: EncoderFactory = DEFAULT_ENCODER,
    ) -> None:
        super().__init__()
        kind = action_kind(action_spec)
        if kind not in self.actions:
            raise ConfigurationError(
                f"action_spec: {type(self).__name__} takes {' or '.join(sorted(self.actions))} "
                f"actions, not {kind} ones"
            )
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.device = device
        self.encoder_factory = encoder
        self.augmentation = encoder.augmentation(observation_spec)

    def build_encoder(self) -> Encoder:
        """Return a new encoder of the observations, for one network.

        Raises:
            ConfigurationError: the factory builds no `Encoder`, or one without a width.
        """
        encoder: Any = self.encoder_factory.build(self.observation_spec, self.device)
        if not isinstance(encoder, Encoder) or not isinstance(getattr(encoder, "width", None), int):
            raise ConfigurationError(
                f"agent.encoder: {type(self.encoder_factory).__name__}.build has to return an "
                "agents.modules.encoders.Encoder with its number of features as `width`"
            )
        return encoder

    @abstractmethod
    def loss(self, batch: TensorDictBase) -> Losses:
        """Return the losses of a batch, each with its graph.

        A function of batch and parameters alone: it changes neither, and reads no value back to
        the host.

        Args:
            batch: transitions `[B]` on the agent's device, in TorchRL's layout: observations and
                `action` at the root; observations, `reward`, `terminated` and `truncated` (each
                `[B, 1]`) under `next`.
        """

    def update(self, batch: TensorDictBase, execution: Execution = EAGER) -> Update:
        """Do one gradient step.

        Args:
            batch: transitions `[B]`, see `loss`.
            execution: computes the gradients and moves the parameters.
        """
        if self.augmentation is not None:
            batch = self.augmentation(batch)
        optimizers = self.optimizers().values()
        losses = execution.gradients(self.loss, batch, optimizers)
        for optimizer in optimizers:
            if self.max_gradient_norm is not None:
                for group in optimizer.param_groups:
                    nn.utils.clip_grad_norm_(group["params"], self.max_gradient_norm)
            execution.step(optimizer)
        metrics = {name: term.detach() for name, term in losses.terms.items()} | losses.metrics
        self.after_update(metrics)
        return Update(metrics, losses.priorities)

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Do what follows a gradient step, for instance move target networks.

        Args:
            metrics: of the step, see `Update`.
        """

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by name: all of them step at each update and are saved.

        Override it in an agent that has others than the one `optimizer`.
        """
        return {"adam": self.optimizer}

    def forget_episodes(self) -> None:
        """Drop all state that belongs to the episodes under way, because new ones begin."""

    def training_state(self) -> dict[str, Any]:
        """Return all that learning depends on: networks, targets, schedules, optimizers."""
        return {
            "networks": networks_state(self),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers().items()},
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `training_state` returned, on any device.

        Hyperparameters of the optimizers stay those of this agent. The learning rate is the saved
        one, which may have changed in the course of training, unless this agent was built with
        another initial rate.

        Raises:
            ConfigurationError: the state belongs to other networks than these.
        """
        load_networks(self, state["networks"])
        for name, optimizer in self.optimizers().items():
            load_optimizer(optimizer, state["optimizers"][name])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Agent:
        """Move parameters and optimizers together: `to`, `cuda`, `cpu` and the like end here."""
        before = dict(self.named_parameters())
        super()._apply(fn, recurse)
        after = dict(self.named_parameters())
        moved = {parameter: after[name] for name, parameter in before.items()}
        # A constructor may move the agent before there is an optimizer.
        if any(isinstance(value, torch.optim.Optimizer) for value in vars(self).values()):
            for optimizer in self.optimizers().values():
                place_optimizer(optimizer, moved)
        self.device = next((p.device for p in after.values()), self.device)
        return self


class OffPolicyAgent(Agent):
    """Learns from a replay of whatever was done before.

    Attributes:
        utd_ratio: gradient steps per environment step (update-to-data ratio).
        n_step: environment steps that a sampled transition spans.
    """

    utd_ratio: float
    n_step: int = 1

    def build_replay(self, capacity: int, num_envs: int) -> ReplayBuffer:
        """Return the replay that this agent samples its batches from, on its device.

        Args:
            capacity: observations to keep.
            num_envs: environments that act at the same time.
        """
        return ReplayBuffer(
            capacity,
            self.observation_spec,
            self.action_spec,
            num_envs,
            self.device,
            n_step=self.n_step,
            gamma=self.gamma,
        )

    def build_encoders(self) -> tuple[Encoder, Encoder]:
        """Return new encoders for actor and critic; a shared one is trained by the critic alone."""
        encoder = self.build_encoder()
        if self.encoder_factory.shared:
            return DetachedEncoder(encoder), encoder
        return encoder, self.build_encoder()

    def bootstrap_discount(self, batch: TensorDictBase) -> Tensor:
        """Return what the value of the next observation counts in a target, `[B, 1]`.

        That is gamma^n, and 0 after a termination; a time limit does not terminate. n is
        `steps_to_next_obs` `[B, 1]`, as n-step replays and TorchRL's `MultiStepTransform` write it,
        and 1 where the batch does not have it.
        """
        terminated = batch.get(("next", "terminated"))
        steps = batch.get("steps_to_next_obs", None)
        discount = torch.full_like(batch.get(("next", "reward")), self.gamma)
        if steps is not None:
            discount = discount**steps
        return discount.masked_fill(terminated, 0.0)

    def weighted_mean(self, loss: Tensor, batch: TensorDictBase) -> Tensor:
        """Return the mean `[]` of the losses `[B]` of a batch, by importance weight.

        Weights are `weight`, as the prioritized replay writes them, or `priority_weight`, as
        TorchRL's prioritized buffers do, `[B]` or `[B, 1]`; without either, all samples count the
        same.
        """
        weight = batch.get("weight", None)
        if weight is None:
            weight = batch.get("priority_weight", None)
        return loss.mean() if weight is None else (weight.reshape(-1) * loss).mean()


class OnPolicyAgent(Agent):
    """Learns from rollouts of its present policy, each used for several epochs and thrown away.

    Attributes:
        rollout_length: steps that every environment makes between two rounds of learning.
        epochs: how often each transition of a rollout is learned from.
    """

    rollout_length: int
    epochs: int

    def build_encoders(self) -> tuple[Encoder, Encoder]:
        """Return new encoders for actor and critic; a shared one is trained by both."""
        encoder = self.build_encoder()
        return encoder, encoder if self.encoder_factory.shared else self.build_encoder()

    @abstractmethod
    def prepare(self, rollout: TensorDictBase) -> TensorDictBase:
        """Return a rollout with what `update` needs besides, advantages for instance.

        Called once per rollout, before the first of its updates.

        Args:
            rollout: transitions `[T, num_envs]` of the present policy, time first, in TorchRL's
                layout; `active` `[T, num_envs, 1]` is false in rows that are no transitions.

        Returns:
            Batch size `[T, num_envs]`; the trainer flattens it and cuts it into minibatches.
        """
