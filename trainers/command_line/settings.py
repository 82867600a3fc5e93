"""Settings of a call of the program, as `trainers.command_line.checking` returns them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from trainers.command_line.schema import GeneralSettings
from trainers.components.component import Component
from trainers.components.sections import full_name
from trainers.exporting.contract import Contract
from trainers.runs.versions import versions


@dataclass(frozen=True)
class Settings:
    """Checked settings of one call of the program.

    Attributes:
        devices: compute devices of the processes that this call starts; one if it trains by itself.
        memory_limit: limit of the memory of the device in bytes; None for no limit.
        execution: executes the training in its precision, eagerly, compiled or captured;
            eagerly and in float32 in other modes.
        checkpoint: file to resume, evaluate, film or export, or folder of an exported policy; None
            to train from scratch, and for an agent that does not learn.
        contract: contract of that policy; None for a file.
        state: content of that file; None to read it where it is loaded.
        evaluation, demo, record, tune: arguments of the classes and functions in
            `trainers.components.sections.SECTIONS`.
        typed: settings as typed, values by dotted name.
        experiment: name of the preset; None without one.
        config: all settings that are saved with a run, as plain values.
        in_place: whether training goes on in the run folder of the checkpoint; otherwise it has a
            new folder, as in a sweep, all runs of which begin with the same checkpoint.
        damaged: newer checkpoints of that folder, which cannot be read.
    """

    general: GeneralSettings
    devices: list[torch.device]
    memory_limit: int | None
    execution: Execution
    checkpoint: Path | None
    contract: Contract | None
    state: dict[str, Any] | None
    agent: Component
    env: Component
    trainer: Component
    collectors: Component
    evaluation: dict[str, Any]
    demo: dict[str, Any]
    record: dict[str, Any]
    tune: dict[str, Any]
    typed: Mapping[str, Any]
    experiment: str | None
    config: dict[str, Any]
    in_place: bool
    damaged: Sequence[Path] = ()

    def as_yaml(self) -> str:
        """Return all settings as the text of a YAML file."""
        sections = {"collectors": self.collectors.config({}), "demo": self.demo, "tune": self.tune}
        sections["record"] = _without_paths(self.record)
        general = {**_without_paths(vars(self.general)), "experiment": self.experiment}
        return OmegaConf.to_yaml({**general, **self.config, **sections})

    def of_run(self) -> str:
        """Return settings and versions of a run as the text of a YAML file."""
        machine = {**self.general.of_machine(), "device": str(self.device)}
        machine["collectors"] = self.collectors.config({})
        return OmegaConf.to_yaml({**self.config, **machine, "versions": versions()})

    def share(self, count: int, device: torch.device) -> "Settings":
        """Return the settings of one of several processes that train together.

        Args:
            count: number of processes, each of which has an equal share of every number that counts
                for the whole run.
            device: device of the process.
        """
        if count > 1 and self.general.graphs == "on":
            raise ConfigurationError("graphs=on: several processes do not capture their updates")
        capacity = self.trainer.settings["replay_capacity"] // count
        return replace(
            self,
            devices=[device],
            env=_divided(self.env, "env", "num_envs", count),
            agent=_divided(self.agent, "agent", "batch_size", count),
            trainer=self.trainer.replaced(replay_capacity=capacity),
            execution=execution_of(self.general, device),
        )

    @property
    def device(self) -> torch.device:
        """Compute device of this process."""
        return self.devices[0]

    @property
    def folder(self) -> Path:
        """Folder of all runs of this agent in this environment."""
        return self.general.runs / self.env_name / self.config["choices"]["agent"]

    @property
    def env_name(self) -> str:
        """Name of the environment: see `full_name`."""
        return full_name(self.config["choices"]["env"], self.env.settings.get("name"))


def execution_of(general: GeneralSettings, device: torch.device) -> Execution:
    """Return the execution of a training."""
    return Execution(device, general.precision, general.compile, general.graphs, general.products)


def _without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with texts in place of paths."""
    return {name: str(x) if isinstance(x, Path) else x for name, x in settings.items()}


def _divided(component: Component, group: str, name: str, count: int) -> Component:
    """Return a component with an equal share of one of its numbers."""
    number = component.settings.get(name)
    if not isinstance(number, int) or number % count:
        raise ConfigurationError(
            f"{group}.{name}={number}: {count} processes cannot share it equally; use a multiple "
            f"of {count}"
        )
    return component.replaced(**{name: number // count})
