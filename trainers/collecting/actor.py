"""A collector in a separate process: environments and a copy of the policy, on the host.

Nothing here needs Ray, which calls the methods of `CollectorActor` one after the other.
"""

import faulthandler
import os
import pickle
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDict
from torchrl.data import Composite
from torchrl.envs.utils import RandomPolicy

from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.devices.host import compute_on_one_thread, limit_cores
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.processes import Processes

_CPU = torch.device("cpu")
_SPECS: Final = ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec")

# Steps `[T, num_envs, ...]` by key.
Chunk = dict[NestedKey, NDArray[Any]]

# Weights and buffers of a policy by name.
Weights = Mapping[str, NDArray[Any]]


class Place(NamedTuple):
    """Process and machine of a collector."""

    pid: int
    machine: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


class Description(NamedTuple):
    """Specs by name of attribute, capabilities and counters of the environments of a collector."""

    specs: dict[str, Composite]
    capabilities: Capabilities
    counters: frozenset[str]


@dataclass(frozen=True)
class Order:
    """Steps to collect.

    Attributes:
        steps: number T of batched steps; always the same for one collector.
        random_steps: number of steps at the beginning whose actions are uniformly random.
        frames: environment steps of the whole run before the first one, for schedules.
        frames_per_step: environment steps of the whole run in one batched step.
        version: number of updates of the weights.
    """

    steps: int
    random_steps: int
    frames: int
    frames_per_step: int
    version: int


class CollectorActor:
    """Steps environments with the weights that the learner sends."""

    def __init__(self, cores: int) -> None:
        compute_on_one_thread()
        limit_cores(cores)
        self._version: int | None = None  # of the weights; None for others than those to come

    def place(self) -> Place:
        """Return where this collector runs."""
        return Place(os.getpid(), socket.gethostname())

    def build(
        self,
        folder: str,
        paths: Sequence[str],
        build: bytes,
        seed: int,
        number: int,
        count: int,
    ) -> Description:
        """Build the environments, and return their description.

        Args:
            folder: working directory of the learner, for relative paths in settings.
            paths: module search path of the learner, for classes of the user's own.
            build: pickled function of a seed, which returns environments.
            seed: seed of the environments and of the actions.
            number: number of this collector among those of the run.
            count: number of all of them.
        """
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
        seed_everything(seed)
        self._env = env = as_environment(pickle.loads(build)(seed))
        # The frames of all collectors count; state that depends on episodes is separate in each.
        others = Processes()
        others.rank, others.count = number, count
        env.join(others)
        specs = {name: getattr(env, name).to(_CPU) for name in _SPECS}
        return Description(specs, env.capabilities, env.counters)

    def set_policy(self, policy: bytes) -> None:
        """Act with a copy of a policy on the host, pickled."""
        self._version = None
        self._policy: PolicyWrapper = pickle.loads(policy)
        self._policy.train()
        self._collector = BatchCollector(self._env, _CPU, self._policy.in_keys)
        robots = self._collector.robots
        self._random_policy = RandomPolicy(self._env.full_action_spec[robots.action_key].to(_CPU))
        self._kept = [*self._collector.observation_keys, robots.action_key, "next"]

    def restart(self, seed: int) -> None:
        """Begin new episodes, drawn from a seed."""
        self._version = None
        seed_everything(seed)
        self._env.set_seed(seed)
        with self._watched():
            self._collector.restart()

    def progress(self) -> dict[str, Any]:
        """Return the progress of the environments, see `Environment.progress`."""
        return dict(self._env.progress())

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Take over the progress of another collector."""
        self._env.load_progress(state)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the environments since the last call."""
        return {name: float(value) for name, value in self._env.metrics().items()}

    @torch.no_grad()
    def collect(self, weights: Weights, order: Order) -> Chunk:
        """Return the next steps, in TorchRL's layout.

        A step or reset that does not return ends the process: see `Environment.stall_seconds`.
        """
        if order.version != self._version:
            state = {name: torch.from_numpy(np.array(each)) for name, each in weights.items()}
            self._policy.load_state_dict(state)
            self._version = order.version
        steps = []
        for number in range(order.steps):
            with self._watched():
                if number < order.random_steps:
                    step = self._collector.step(self._random_policy)
                else:
                    self._policy.frames.fill_(order.frames + number * order.frames_per_step)
                    step = self._collector.step(self._policy)
            steps.append(step.select(*self._kept))
        chunk = TensorDict.stack(steps)
        return {key: leaf.numpy() for key, leaf in chunk.items(True, True)}

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the process if the block takes longer than an environment ever should."""
        if self._env.stall_seconds is not None:
            faulthandler.dump_traceback_later(
                self._env.stall_seconds, exit=True, file=sys.__stderr__ or sys.stderr
            )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Close the environments."""
        self._env.close(raise_if_closed=False)
