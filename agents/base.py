"""The base classes of all agents."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import wraps
from typing import Any, ClassVar, Final

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents import hyperparameters as hp
from agents.modules.encoders import (
    DEFAULT_ENCODER,
    DetachedEncoder,
    Encodable,
    Encoder,
    NormalizedEncoder,
    checked_encoder,
)
from agents.modules.normalization import ObservationNormalizer
from agents.modules.target_network import TargetNetwork
from agents.modules.training_state import Resumable
from agents.modules.transitions import check_transitions
from torchrl_gpu.acting.exploration import Exploration
from torchrl_gpu.acting.policy import Actor, Observations, PolicyWrapper
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.devices.device import check_device
from torchrl_gpu.environments.specs import ActionKind, action_kind
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import starting_rate
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.learner import Losses, Update
from torchrl_gpu.processes import ONE_PROCESS, Processes
from torchrl_gpu.replay.buffer import ReplayBuffer

logger = logging.getLogger(__name__)

# Packages whose modules are known to compute the same when they are captured.
_CAPTURED: Final = {"agents", "torchrl_gpu", "torch", "torchrl", "tensordict"}


class Agent(CheckedFields, Resumable, ABC):
    """An algorithm: a policy that acts, and a loss that learns from a batch.

    An agent depends on neither environment nor trainer, and its attributes declare its
    capabilities. To write one, derive from `OffPolicyAgent` or `OnPolicyAgent`. Its annotated
    attributes are its settings, the arguments of its constructor; `agents.hyperparameters` has the
    types of those that several agents share. `__post_init__` builds the networks on the host, moves
    the agent to its device with `self.to(self.device)`, and then builds the optimizer.

    Args:
        observation_spec: spec of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, bounded and continuous `[num_envs, action_dim]` or
            discrete `[num_envs]`.
        device: device of all parameters and computations.

    Attributes:
        actions: the kinds of actions that the agent can produce.
        added_keys: names of the entries that a replay or the agent adds to a batch; no observation
            can have one of them.
        policy: maps a TensorDict of observations to one with actions; it explores in train mode and
            is greedy in eval mode.
        optimizer: optimizer of all trainable parameters.
        rate_schedule: learning rate of all optimizers over the frames of the policy, set before
            each gradient step; None for no schedule.
        normalizer: normalizes the observations that all encoders read; None for none.
        phase: index of the kind of update that comes next, from 0; always 0 for an agent whose
            updates are all of one kind. Each phase is compiled and captured separately.
        processes: processes that train the agent together, see `join`.
        unused: settings without effect by name, each with its reason, as in `agent.noisy=true`.

    Raises:
        ConfigurationError: a hyperparameter is out of range, two of them exclude each other, the
            agent cannot produce actions of this kind or read these observations, their spec has
            another batch size, an observation has the name of an added entry, this machine lacks
            the device, or `__post_init__` has not set an attribute.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset()
    added_keys: ClassVar[frozenset[str]] = frozenset()
    policy: PolicyWrapper = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    observation_spec: Composite = field(kw_only=False)
    action_spec: TensorSpec = field(kw_only=False)
    device: torch.device = field(kw_only=False)

    encoder: hp.EncoderSetting = DEFAULT_ENCODER
    normalize_observations: hp.NormalizeObservations = False
    learning_rate: hp.LearningRate
    learning_rate_end: hp.LearningRateEnd = None
    learning_rate_frames: hp.LearningRateFrames = None
    gamma: hp.Gamma = 0.99
    max_gradient_norm: hp.GradientNorm = None
    batch_size: hp.BatchSize

    def __init_subclass__(cls) -> None:
        """Let the constructor refuse an agent without policy or optimizer, and note its rates."""
        super().__init_subclass__()
        constructor: Any = cls.__init__

        @wraps(constructor)
        def construct(self: Agent, *arguments: Any, **named: Any) -> None:
            try:
                constructor(self, *arguments, **named)
            except AttributeError as error:
                if "_modules" in vars(self):
                    raise
                text = f"agent: {cls.__name__}.__post_init__ has to call super().__post_init__()"
                raise ConfigurationError(f"{text} first ({error})") from error
            if type(self) is not cls:
                return  # the constructor of the subclass may still set them
            has_one = cls.optimizers is Resumable.optimizers
            for name in ("policy", "optimizer") if has_one else ("policy",):
                if not hasattr(self, name):
                    text = f"agent: {cls.__name__}.__post_init__ has to set self.{name}"
                    raise ConfigurationError(text)
            for optimizer in self.optimizers().values():
                for group in optimizer.param_groups:
                    if "lr" in group:
                        starting_rate(group)  # before the agent changes it

        cls.__init__ = construct  # type: ignore[method-assign]

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings that exclude or need each other, before anything is built.

        Args:
            settings: settings by name; those that are components may be missing.

        Raises:
            ConfigurationError: a schedule lacks its end or its frames.
        """
        for name in settings:
            pair = f"{name}_end", f"{name}_frames"
            if settings.keys() >= {*pair} and len({settings[each] is None for each in pair}) > 1:
                raise ConfigurationError(
                    f"agent.{pair[0]} and agent.{pair[1]}: a schedule needs both of them"
                )

    def __post_init__(self) -> None:
        """Check settings and specs. An override calls this first, then builds the networks."""
        super().__init__()
        check_device(self.device)
        self.unused: dict[str, str] = {}
        # With those that a subclass fixes, which are attributes of the class.
        names = [name for name in self.__dataclass_fields__ if hasattr(self, name)]
        self.check_combination({name: getattr(self, name) for name in names})
        if self.observation_spec.ndim != 1:
            raise ConfigurationError(
                "observation_spec: its batch size has to be [num_envs], not "
                f"{list(self.observation_spec.shape)}"
            )
        kind = action_kind(self.action_spec)
        if kind not in self.actions:
            raise ConfigurationError(
                f"action_spec: {type(self).__name__} takes "
                f"{' or '.join(sorted(self.actions)) or 'no'} actions, not {kind} ones"
            )
        shape, dtype = self.action_spec.shape, self.action_spec.dtype
        is_continuous = kind == "continuous"
        fits = shape[:1] == self.observation_spec.shape and len(shape) == 1 + is_continuous
        if not fits or (is_continuous and dtype != torch.float32):
            raise ConfigurationError(
                f"action_spec: it has shape {list(shape)} and {dtype}; agents take float32 "
                "[num_envs, action_dim], or [num_envs] of choices, as of action_spec(env)"
            )
        taken = sorted(self.added_keys.intersection(self.observation_spec.keys()))
        if taken:
            raise ConfigurationError(
                f"observation {taken[0]!r}: {type(self).__name__} adds an entry of this name to "
                "its batches; rename the observation, or leave it out of observation_keys"
            )
        self.normalizer: ObservationNormalizer | None = None
        if self.normalize_observations:
            self.normalizer = ObservationNormalizer(self.observation_spec)
            if not self.normalizer.vectors:
                self.unused["normalize_observations"] = "observations without vectors"
        self.augmentation = self.encoder.augmentation(self.observation_spec)
        self.rate_schedule = self.build_schedule("learning_rate")
        self.phase = 0
        self.processes: Processes = ONE_PROCESS
        # Of `update`; it remembers the number of transitions that fit into memory.
        self._execution = Execution()

    def build_schedule(self, name: str) -> LinearSchedule | None:
        """Return the schedule of a setting by `name_end` and `name_frames`; None without them."""
        start, end, frames = (getattr(self, name + suffix) for suffix in ("", "_end", "_frames"))
        return None if end is None else LinearSchedule(start, end, frames)

    def build_encoder(self) -> Encoder:
        """Return a new encoder of the observations, for one network: see `checked_encoder`."""
        encoder = checked_encoder(self.encoder, self.observation_spec)
        return encoder if self.normalizer is None else NormalizedEncoder(self.normalizer, encoder)

    def encode(self, network: nn.Module, observation: Observations) -> Encodable:
        """Encode observations once, for all networks that share the `encoder` of a network.

        Where each network has its own encoder, the observations are returned as they are.
        """
        if not self.encoder.shared:
            return observation
        return network.get_submodule("encoder")(observation)

    def build_policy(self, actor: Actor, exploration: Exploration | None = None) -> PolicyWrapper:
        """Return the policy that acts by an actor: see `PolicyWrapper`."""
        return PolicyWrapper(actor, self.observation_spec, self.action_spec, exploration)

    @abstractmethod
    def loss(self, batch: TensorDictBase) -> Losses:
        """Return the differentiable losses of a batch from `prepare_batch`, or of some of its rows.

        They depend on the batch, the parameters, the phase and random draws alone. Every loss and
        metric is a mean over the rows of the batch, so that a batch can be processed in parts;
        `prepare_batch` computes all quantities that depend on several rows. The method changes
        neither batch nor parameters, and reads no value back to the host.
        """

    def prepare_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Return a batch with all entries that `loss` reads; the given batch stays unchanged.

        Here an encoder augments images. An override computes statistics of the whole batch, such as
        the mean of the advantages, and adds them as entries with one value for each row.

        Args:
            batch: transitions `[B]` on the agent's device, in TorchRL's layout: observations and
                `action` at the root; observations, `reward`, `terminated` and `truncated` (each
                `[B, 1]`) under `next`.
        """
        return batch if self.augmentation is None else self.augmentation(batch)

    def warn_of_unused(self) -> None:
        """Log which settings in `unused` differ from their defaults."""
        for name, where in self.unused.items():
            value = getattr(self, name)
            if value != getattr(type(self), name):
                logger.warning("agent.%s=%s: no effect with %s", name, value, where)

    def update(self, batch: TensorDictBase) -> Update:
        """Take one eager gradient step in fp32 with transitions `[B]`, see `prepare_batch`.

        The trainer calls `Execution.update` instead.

        Raises:
            ConfigurationError: the batch has several dimensions.
        """
        if batch.batch_dims != 1:
            raise ConfigurationError(
                f"batch: it has batch size {list(batch.batch_size)}; an update takes [B], as of "
                "batch.reshape(-1)"
            )
        return self._execution.update(self, batch)

    def join(self, processes: Processes) -> None:
        """Train as one of several processes, all from the parameters of the process of rank 0.

        Every process calls this method before the trainer or the replay buffer is built.
        """
        self.processes = processes
        self.policy.num_processes = processes.count
        for tensor in self.state_dict().values():
            tensor.copy_(processes.broadcast(tensor))

    @torch.no_grad()
    def follow_rate_schedule(self) -> None:
        """Set the learning rates of all optimizers by `rate_schedule`, if there is one.

        Groups of parameters keep the ratio of their initial rates.
        """
        if self.rate_schedule is not None:
            rate = self.rate_schedule(self.policy.frames)
            for optimizer in self.optimizers().values():
                for group in optimizer.param_groups:
                    scaled = rate * (starting_rate(group) / self.learning_rate)
                    if isinstance(group["lr"], Tensor):
                        group["lr"].copy_(scaled)
                    else:
                        group["lr"] = float(scaled)

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Run after each gradient step, for instance to update target networks.

        The metrics are those of the step, see `Update`: means over all processes.
        """

    def advance(self) -> None:
        """Set `phase` for the next update; called last in each gradient step."""

    @property
    def can_capture(self) -> bool:
        """Whether captured updates equal eager ones, so that a run may choose to capture them.

        Those of one process and of the classes here do. A class of another package, such as a
        user's encoder or augmentation, may keep state outside tensors or read values back;
        `graphs=on` captures it all the same.
        """
        parts = [*self.modules(), *([] if self.augmentation is None else [self.augmentation])]
        packages = {type(part).__module__.partition(".")[0] for part in parts}
        return packages <= _CAPTURED and self.processes.count == 1

    def forget_episodes(self) -> None:
        """Reset all state that belongs to unfinished episodes, because new episodes begin."""

    def episode_state(self) -> dict[str, Tensor]:
        """Return the state that belongs to unfinished episodes: tensors of the agent by name.

        Each of several processes has that of its environments. It stands in no other state: buffers
        that hold it are not persistent.
        """
        return {}


class OffPolicyAgent(Agent):
    """An agent that learns from a replay buffer of past transitions."""

    added_keys = frozenset({"weight", "priority_weight", "place", "steps_to_next_obs"})

    utd_ratio: hp.UTDRatio
    n_step: hp.NStep = 1
    demonstrations: hp.Demonstrations = None
    demonstration_share: hp.DemonstrationShare = 0.25

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a share of no demonstrations, and more: see the base class."""
        super().check_combination(settings)
        share, default = settings["demonstration_share"], cls.demonstration_share
        if settings["demonstrations"] is None and share != default:
            raise ConfigurationError(
                f"agent.demonstration_share={share:g}: without effect; add agent.demonstrations="
                f"FOLDER, or use {default:g}"
            )

    @property
    def replay_type(self) -> Callable[..., ReplayBuffer]:
        """Class of the replay buffer, or its constructor with some arguments bound."""
        return ReplayBuffer

    def build_replay(
        self, capacity: int, frame_stacks: Mapping[NestedKey, int] | None = None
    ) -> ReplayBuffer:
        """Return a replay buffer on the device of this agent: see `ReplayBuffer`."""
        return self.replay_type(
            capacity,
            self.observation_spec,
            self.action_spec,
            self.device,
            n_step=self.n_step,
            gamma=self.gamma,
            frame_stacks=frame_stacks,
            setting="trainer.replay_capacity",
        )

    def build_encoders(self) -> tuple[Encoder, Encoder]:
        """Return new encoders for actor and critic; the critic alone trains a shared encoder."""
        encoder = self.build_encoder()
        if self.encoder.shared:
            return DetachedEncoder(encoder), encoder
        return encoder, self.build_encoder()

    def prepare_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch, see `Agent.prepare_batch`; the normalizer learns its observations."""
        if self.normalizer is not None:
            self.normalizer.update(batch, processes=self.processes)
        return super().prepare_batch(batch)

    def update(self, batch: TensorDictBase) -> Update:
        """Check the entries of the batch, and take a gradient step: see `Agent.update`."""
        check_transitions(batch, self.observation_spec, self.action_spec)
        return super().update(batch)

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target networks among the attributes of the agent."""
        for network in self.children():
            if isinstance(network, TargetNetwork):
                network.update()

    def bootstrap_discount(self, batch: TensorDictBase) -> Tensor:
        """Return the discount `[B, 1]` of the value of the next observation in a target.

        The discount is gamma^n, and 0 after a termination; a time limit does not terminate. n is
        `steps_to_next_obs` `[B, 1]`, written by n-step replays and by TorchRL's
        `MultiStepTransform`, or 1 if the batch has no such entry.
        """
        terminated = batch.get(("next", "terminated"))
        steps = batch.get("steps_to_next_obs", None)
        discount = torch.full_like(batch.get(("next", "reward")), self.gamma)
        if steps is not None:
            discount = discount**steps
        return discount.masked_fill(terminated, 0.0)

    def weighted_mean(self, loss: Tensor, batch: TensorDictBase) -> Tensor:
        """Return the mean `[]` of losses `[B]`, weighted by the importance weights of the batch.

        The weights, `[B]` or `[B, 1]`, are `weight`, written by the prioritized replay, or
        `priority_weight`, written by TorchRL's prioritized buffers. Without either entry, all
        transitions have weight 1.
        """
        weight = batch.get("weight", batch.get("priority_weight", None))
        return loss.mean() if weight is None else (weight.reshape(-1) * loss).mean()


class OnPolicyAgent(Agent):
    """An agent that learns from rollouts of its current policy, each used for several epochs.

    A rollout has `rollout_length` steps of every environment, and an epoch passes over all of them.
    """

    rollout_length: hp.Count
    epochs: hp.Count

    def build_encoders(self) -> tuple[Encoder, Encoder]:
        """Return new encoders for actor and critic; both of them train a shared encoder."""
        encoder = self.build_encoder()
        return encoder, encoder if self.encoder.shared else self.build_encoder()

    @abstractmethod
    def prepare(self, rollout: TensorDictBase) -> TensorDictBase:
        """Return a rollout with all further entries that an update reads, for instance advantages.

        Called once per rollout, before its first update. Here an agent updates its `normalizer`.
        The trainer flattens the result `[T, num_envs]` and splits it into minibatches.

        Args:
            rollout: transitions `[T, num_envs]` of the current policy, time first, in TorchRL's
                layout. Where no episode ended, a step begins with the observation that the step
                before it led to. `active` `[T, num_envs, 1]` is False in rows without a transition.
        """
