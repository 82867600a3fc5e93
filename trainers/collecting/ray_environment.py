"""Environments in processes of Ray, as one `Environment` that only its collector steps."""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, NoReturn

import torch
from ray import cloudpickle
from ray.exceptions import RayError
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from agents.base import Agent
from torchrl_gpu.acting.collector import Collector
from torchrl_gpu.devices.seeding import stream_seed
from torchrl_gpu.errors import WorkerError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.collecting.collectors import RayCollectors, RemoteEnvironment
from trainers.collecting.ray_cluster import CollectorProcess, connect, end
from trainers.collecting.ray_collector import RayCollector

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")


class RayEnvironment(RemoteEnvironment):
    """The environments of several collectors, one after the other in one batch.

    It has their specs and capabilities, except that a saved state, overlap and another mode are
    left to environments in this process. Environment i of the batch is number `i % share` of
    collector `i // share`, whose seed is that of the first of its environments.

    The arguments are those of `Collectors.environment`. `num_envs` is a multiple of the number of
    collectors of this process.

    Attributes:
        members: the collectors of this process.
        share: number of environments of each collector.
        ages: age of the weights that collected each step since the metrics were read, in updates.
        replaced: number of collectors that were replaced since then.
    """

    stall_seconds = None  # collectors watch their own steps

    def __init__(
        self,
        build: Callable[[int, int], EnvBase],
        num_envs: int,
        settings: RayCollectors,
        seed: int = 0,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        super().__init__(device=_CPU, batch_size=(num_envs,))
        count = settings.count // processes.count
        self.settings = settings
        self.share = num_envs // count
        self.ages: list[int] = []
        self.replaced = 0
        self._seed = seed
        self._replacements = 0
        self._known: dict[str, Any] = {}  # policy and progress of new collectors, see `replace`
        self.members: list[CollectorProcess] = []
        self._leave = connect(settings.address, count * settings.cores)
        try:
            pickled = cloudpickle.dumps(partial(build, self.share))
            for number in range(count * processes.rank, count * (processes.rank + 1)):
                process = CollectorProcess(number, settings.count, settings.cores, pickled)
                self.members.append(process)
                process.launch()
            for process, own in zip(self.members, self.seeds(), strict=True):
                try:
                    process.build(own)
                except RayError as error:
                    logger.warning("%s", process.replace(error, own, {}))
        except BaseException:
            self.close()
            raise
        places = ", ".join(str(process.place) for process in self.members)
        logger.info("%d collectors of %d environments: %s", count, self.share, places)
        found = self.members[0].description
        self.capabilities = replace(
            found.capabilities,
            has_state=False,
            can_overlap=False,
            can_switch_mode=False,
            simulator_device=None,
        )
        self.counters = found.counters | {"collectors/replaced", "workers/lost_episodes"}
        for name, spec in found.specs.items():
            setattr(self, name, spec[0].expand(num_envs))

    def seeds(self) -> list[int]:
        """Return the seed of each collector."""
        return [self._seed + number * self.share for number in range(len(self.members))]

    def collector(
        self,
        agent: Agent,
        random_frames: int,
        updates: Callable[[], int],
        forget: Callable[[Tensor], object],
    ) -> Collector:
        """Send the policy to the processes, and return the collector that receives their steps."""
        policy = cloudpickle.dumps(copy.deepcopy(agent.policy).to(_CPU))
        self._known["set_policy"] = policy
        self.call_each("set_policy", repeat(policy))
        return RayCollector(self, agent, random_frames, updates, forget)

    def call_each(self, method: str, arguments: Iterable[Any]) -> None:
        """Call a method of each collector with its argument, and replace those that are lost."""
        pairs = zip(self.members, arguments, strict=False)
        references = [process.ask(method, argument) for process, argument in pairs]
        for number, reference in enumerate(references):
            try:
                self.members[number].result(reference)
            except RayError as error:
                self.replace(number, error)

    def replace(self, number: int, error: RayError) -> None:
        """Replace a collector of the batch, whose environments begin new episodes."""
        self.replaced += 1
        self._replacements += 1
        process = self.members[number]
        seed = stream_seed(self._seed, "training", self._replacements, rank=process.number + 1)
        text = process.replace(error, seed, self._known)
        first = number * self.share
        logger.warning(
            "%s: the episodes of environments %d to %d are truncated; %s replaces it",
            *(text, first, first + self.share - 1, process.place),
        )

    def metrics(self) -> Mapping[str, float]:
        """Return the sums of the counters of all collectors, and means of the other metrics.

        The progress that new collectors take over is brought up to date as well.

        The age of the weights is the number of updates between them and the weights that learn
        from the step first: `collectors/weights_age` is its mean, `collectors/max_weights_age` its
        maximum.
        """
        values: dict[str, list[float]] = {}
        references = [(process, process.ask("metrics")) for process in self.members]
        for process, reference in references:
            with contextlib.suppress(RayError):  # the next chunk notices the loss
                for name, value in process.result(reference).items():
                    values.setdefault(name, []).append(value)
        metrics = {
            name: sum(each) / (1 if name in self.counters else len(each))
            for name, each in values.items()
        }
        if self.ages:
            metrics["collectors/weights_age"] = sum(self.ages) / len(self.ages)
            metrics["collectors/max_weights_age"] = max(self.ages)
        metrics["collectors/replaced"] = self.replaced
        lost = metrics.get("workers/lost_episodes", 0) + self.replaced * self.share
        metrics["workers/lost_episodes"] = lost
        self.ages, self.replaced = [], 0
        self.progress()
        return metrics

    def progress(self) -> Mapping[str, Any]:
        """Return the progress of the first collector, or the last one before it died.

        It stands for all where a run resumes: curricula of collectors differ by little.
        """
        with contextlib.suppress(RayError):
            if progress := self.members[0].call("progress"):
                self._known["load_progress"] = progress
        return self._known.get("load_progress", {})

    def load_progress(self, state_dict: Mapping[str, Any]) -> None:
        """Let all collectors go on with a progress."""
        self._known["load_progress"] = state_dict
        self.call_each("load_progress", repeat(state_dict))

    def join(self, processes: Processes) -> None:
        """Do nothing: the collectors know how many there are."""

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End the collectors, and leave the cluster; repeated calls have no effect."""
        processes, self.members = self.members, []
        end(processes, self._leave)
        self.is_closed = True

    def _set_seed(self, seed: int | None) -> None:
        """Set the seed of the next restart of all episodes."""
        self._seed = seed or 0

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> NoReturn:
        raise WorkerError("the environments of collectors=ray are stepped by their collector only")

    _step = _reset
