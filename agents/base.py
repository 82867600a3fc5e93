"""What every agent offers to a trainer, whatever its algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.policy import PolicyWrapper
from torchrl_gpu.replay import ReplayBuffer
from torchrl_gpu.specs import ActionKind, action_kind


class Agent(nn.Module, ABC):
    """An algorithm: how to act (`policy`) and how to learn from a batch (`update`).

    An agent knows neither the world nor the trainer. Write one as a subclass of `OffPolicyAgent` or
    `OnPolicyAgent`; it says what it is by its attributes:

    Args:
        observation_spec: what the agent sees, batch size `[num_envs]`.
        action_spec: what it does: bounded and continuous `[num_envs, action_dim]`, or discrete
            `[num_envs]`.
        device: where it lives.

    Attributes:
        on_policy: whether it learns only from what its present policy has collected.
        actions: the kinds of actions it can produce.
        policy: acts, TensorDict in, TensorDict out; explores in train mode, greedy in eval mode.
        optimizer: of everything that learns.
        batch_size: transitions per gradient step.
        gamma: discount per environment step, 0 to 1.

    Raises:
        ConfigurationError: the agent cannot produce actions of this kind.
    """

    on_policy: ClassVar[bool]
    actions: ClassVar[frozenset[ActionKind]]
    policy: PolicyWrapper
    optimizer: torch.optim.Optimizer
    batch_size: int
    gamma: float

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
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

    @abstractmethod
    def loss(self, batch: TensorDictBase) -> TensorDict:
        """Return the scalar losses of a batch, each with its graph, by name."""

    @abstractmethod
    def update(self, batch: TensorDictBase) -> TensorDict:
        """Do one gradient step on a batch and return detached scalar metrics, by name.

        Args:
            batch: transitions `[batch_size]` on the agent's device, in TorchRL's layout:
                observations and `action` at the root; observations, `reward`, `terminated` and
                `truncated` (each `[batch_size, 1]`) under `next`.
        """

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by name, so that a checkpoint holds their state.

        Override it in an agent that has others than the one `optimizer`.
        """
        return {"adam": self.optimizer}

    def training_state(self) -> dict[str, Any]:
        """Return all that learning depends on: networks, targets, schedules, optimizers."""
        return {
            "networks": self.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers().items()},
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `training_state` returned.

        A learning rate other than the saved one holds from here on. So an agent that changes its
        rate by itself, and not by a scheduler of torch, has to restore it, as PPO does.

        Raises:
            ConfigurationError: the state belongs to other networks than these.
        """
        load_networks(self, state["networks"])
        for name, optimizer in self.optimizers().items():
            saved = state["optimizers"][name]
            asked = [_initial_rate(group) for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            groups = zip(optimizer.param_groups, saved["param_groups"], asked, strict=True)
            for group, before, rate in groups:
                if rate != _initial_rate(before):
                    group["lr"] = rate


def load_networks(networks: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `state_dict()` of networks returned.

    Raises:
        ConfigurationError: it belongs to other networks than these.
    """
    try:
        networks.load_state_dict(state)
    except RuntimeError as error:
        # The first line says that there are errors; the second names the first of them.
        problem = str(error).splitlines()[1].strip()
        raise ConfigurationError(
            f"the networks saved are not those of these settings: {problem}"
        ) from error


def _initial_rate(group: Mapping[str, Any]) -> Any:
    """Return the learning rate of a group of parameters, before a scheduler of torch moved it."""
    return group.get("initial_lr", group["lr"])


class OffPolicyAgent(Agent):
    """Learns from a replay of whatever was done before.

    Attributes:
        utd_ratio: gradient steps per environment step (update-to-data ratio).
        n_step: environment steps that a sampled transition spans.
    """

    on_policy: ClassVar[bool] = False
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


class OnPolicyAgent(Agent):
    """Learns from rollouts of its present policy, each used for several epochs and thrown away.

    Attributes:
        rollout_length: steps that every environment makes between two rounds of learning.
        epochs: how often each transition of a rollout is learned from.
    """

    on_policy: ClassVar[bool] = True
    rollout_length: int
    epochs: int

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
