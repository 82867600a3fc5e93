"""Choices of `collectors=`: processes that hold and step the environments of a training."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

from pydantic import Field
from torch import Tensor

from agents.base import Agent
from torchrl_gpu.acting.collector import Collector
from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.extras import check_extra
from torchrl_gpu.processes import Processes

_SECONDS_TO_CONNECT: Final = 5.0

CANNOT_RESTART: Final = (
    "trainer.on_nonfinite=restart: collectors=ray cannot restart single environments; use "
    "trainer.on_nonfinite=stop"
)

# Builds environments in their training mode, given their number and their seed.
BuildEnv = Callable[[int | None, int], Environment]


class Collectors(CheckedFields):
    """The training steps its environments itself. Base of all other choices."""

    @property
    def remote_cores(self) -> int | None:
        """Number of cores of other processes that have the environments, on their host.

        They then do not overlap with the updates (`Capabilities.can_overlap`). None for
        environments in this process.
        """
        return None

    def check(self, num_envs: int | None, trainer: Mapping[str, Any], learners: int) -> None:
        """Refuse a run that these collectors cannot feed, before anything is built; here none.

        Args:
            num_envs: number of environments of the run; None for a class that does not tell.
            trainer: settings of the trainer by name.
            learners: number of processes that train together; collectors are divided among them.
        """

    def environment(
        self, build: BuildEnv, num_envs: int | None, seed: int, processes: Processes
    ) -> Environment:
        """Return the training environment of this process.

        Args:
            build: builds environments of the run; of remote collectors, it can be pickled.
            num_envs: number of environments of this process; None for the default of their class.
            seed: seed of the environments of this process.
            processes: processes that train together.
        """
        return build(num_envs, seed)


class RayCollectors(Collectors):
    """Processes of Ray step the environments, each with a copy of the policy.

    They are of use where the simulator takes more cores than one machine has. Off-policy agents
    learn while the collectors simulate, so these act with weights that are some updates old;
    on-policy agents wait for each rollout of their newest policy.

    Args:
        count: number of collectors of the run; each has an equal share of env.num_envs.
        address: the Ray cluster to join: auto for that of this machine, or host:port of its head;
            None to start Ray on this machine for the time of the run.
        cores: number of cores of each collector, which Ray reserves for it and which the worker
            processes of its environments use.
        steps: maximum number of batched steps that a collector simulates with the same weights of
            an off-policy agent; fewer where max_age demands it.
        max_age: number of updates by which the weights that a collector acts with may be older than
            those that learn from its steps; None for no limit but that of steps.

    Raises:
        ConfigurationError: Ray is not installed.
    """

    count: Annotated[int, Field(ge=1)] = 1
    address: Annotated[str, Field(pattern=r"^(auto|[^\s/]+:\d+)$")] | None = None
    cores: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=1)] = 8
    max_age: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        check_extra("collectors=ray", "ray", "ray")

    @property
    def remote_cores(self) -> int:
        """Number of cores of all collectors."""
        return self.count * self.cores

    def check(self, num_envs: int | None, trainer: Mapping[str, Any], learners: int) -> None:
        """Refuse numbers that cannot be divided, restarts of single rows, and an idle address."""
        if num_envs is None:
            raise ConfigurationError(
                "collectors=ray: the class of the environment needs a setting num_envs, which is "
                "divided among the collectors"
            )
        if self.count % learners:
            raise ConfigurationError(
                f"collectors.count={self.count}: {learners} processes train together and need a "
                f"multiple of {learners} collectors"
            )
        if num_envs % self.count:
            raise ConfigurationError(
                f"collectors.count={self.count}: env.num_envs={num_envs} cannot be divided by it; "
                f"use env.num_envs={-(-num_envs // self.count) * self.count}"
            )
        if trainer.get("on_nonfinite") == "restart":
            raise ConfigurationError(CANNOT_RESTART)
        host, _, port = (self.address or "").rpartition(":")
        if host:  # Ray would try for ten minutes
            try:
                socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
            except (OSError, OverflowError) as error:
                raise ConfigurationError(
                    f"collectors.address={self.address}: nothing answers there ({error}); start a "
                    "head by ray start --head, or leave collectors.address out for this machine"
                ) from None

    def environment(
        self, build: BuildEnv, num_envs: int | None, seed: int, processes: Processes
    ) -> Environment:
        """Start the collectors of this process, and return the facade of their environments.

        Raises:
            ConfigurationError: the cluster cannot be reached, or an environment cannot be built.
            WorkerError: Ray cannot start a collector.
        """
        module = import_module("trainers.collecting.ray_environment")  # imports Ray
        env: Environment = module.RayEnvironment(build, num_envs, self, seed, processes)
        return env


class RemoteEnvironment(Environment, ABC):
    """Environments that other processes step, and which therefore bring their own collector."""

    @abstractmethod
    def collector(
        self,
        agent: Agent,
        random_frames: int,
        updates: Callable[[], int],
        forget: Callable[[Tensor], object],
    ) -> Collector:
        """Return the collector of these environments for an agent.

        Args:
            agent: agent that learns from the steps and whose policy acts.
            random_frames: number of environment steps of the run with random actions.
            updates: returns the number of updates of the agent so far.
            forget: called with the rows, bool `[R]`, whose open episodes were lost unseen: new
                ones begin there.
        """
