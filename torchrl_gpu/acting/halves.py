"""Collector of transitions that acts in one half of a batch while the other half simulates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.envs import EnvBase

from torchrl_gpu.acting.collector import BatchCollector, Policy
from torchrl_gpu.environments.environment import name_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution import EAGER, Execution


class HalvesCollector(BatchCollector):
    """Collects one transition of every environment at a time, in two halves that take turns.

    With `step(policy, ahead)`, each half begins its next step as soon as its last one has ended,
    and simulates while the program acts in the other half. The policy is called once for each half,
    and a random policy therefore acts otherwise than in the whole batch. An environment on another
    device costs two packed copies per step for each half.

    Args:
        env: environment with `Environment.halves`.
        device: device of the policy and of the replay buffer.
        observation_keys: keys that the policy reads, see `BatchCollector`.
        execution: execution that calls the policy.

    Raises:
        ConfigurationError: the environment has no halves.
    """

    def __init__(
        self,
        env: EnvBase,
        device: torch.device,
        observation_keys: Sequence[NestedKey],
        execution: Execution = EAGER,
    ) -> None:
        super().__init__(env, device, observation_keys, execution)
        if not self.env.halves():
            raise ConfigurationError(f"{name_of(self.env)} has no halves: use BatchCollector")
        self._halves = tuple(
            BatchCollector(half, device, observation_keys, execution) for half in self.env.halves()
        )
        # The transitions of a step that not all halves have ended.
        self._ended: list[TensorDictBase] = []

    @property
    def parts(self) -> tuple[BatchCollector, ...]:
        """The collectors of both halves."""
        return self._halves

    def step(self, policy: Policy, ahead: Policy | None = None) -> TensorDictBase:
        """Act once in every environment: see `BatchCollector.step`.

        Returns:
            The transition `[*B]`, in memory of its own.
        """
        if not self._ended:
            self.begin(policy)
        # After an interrupt the halves that have ended keep their transitions.
        for half in self._halves[len(self._ended) :]:
            self._ended.append(half.step(policy, ahead))
        transition = torch.cat(self._ended)
        self._ended = []
        self.steps += 1
        return transition

    def begin(self, policy: Policy) -> None:
        """Act in both halves, and begin their steps: see `BatchCollector.begin`."""
        for half in self._halves:
            half.begin(policy)

    def finish(self) -> TensorDictBase:
        """Wait for the end of the step that has begun: see `BatchCollector.finish`."""
        self.steps += 1
        return torch.cat([half.finish() for half in self._halves])

    def _pending(self) -> tuple[TensorDictBase | None, bool]:
        pending = [half._pending() for half in self._halves]
        roots = [root for root, _ in pending if root is not None]
        if len(roots) < len(pending):
            return None, False
        have_acted = all(has_acted for _, has_acted in pending)
        if not have_acted:  # after an interrupt, one half may have
            roots = [root.exclude(self.robots.action_key) for root in roots]
        return torch.cat(roots), have_acted

    def _put(self, root: TensorDictBase | None, has_acted: bool = False) -> None:
        self._ended = []
        sizes = [half.env.batch_size.numel() for half in self._halves]
        roots = [None] * len(sizes) if root is None else root.split(sizes)
        for half, part in zip(self._halves, roots, strict=True):
            half._put(part, has_acted)
