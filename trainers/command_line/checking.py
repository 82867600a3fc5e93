"""Settings of the program, checked before anything is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from agents.untrained import UntrainedAgent
from torchrl_gpu.arguments import check_settings
from torchrl_gpu.devices.device import resolve_device, resolve_devices
from torchrl_gpu.devices.memory import memory_limit
from torchrl_gpu.distributed import backend_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER, Execution
from torchrl_gpu.place import is_launched, num_processes
from trainers.collecting.collectors import Collectors
from trainers.command_line.composition import Composed, joined, one_line_errors
from trainers.command_line.early import check_chosen, check_names, general_settings
from trainers.command_line.schema import GeneralSettings, Mode
from trainers.command_line.sizes import resolve_sizes
from trainers.components.choices import SAVED_GROUPS
from trainers.components.component import Component, read_component
from trainers.components.pairing import capabilities_of, overlap_of
from trainers.components.sections import (
    AUTO,
    AUTOMATIC,
    PROVIDED,
    SECTIONS,
    TARGET,
    full_name,
    take_automatic,
)
from trainers.components.trust import check_trusted, named
from trainers.exporting.contract import Contract, read_contract
from trainers.exporting.extra import RUNS, WRITES, check_extra
from trainers.runs.folders import goes_on, newest_run
from trainers.runs.policy_files import check_trainable, load_checkpoint, newest_readable
from trainers.runs.pretrained import find_policy
from trainers.runs.versions import versions
from trainers.training.experience import check_updates
from trainers.training.trainer import TorchRLTrainer
from trainers.viewing.address import check_address


@dataclass(frozen=True)
class Settings:
    """Checked settings of one call of the program.

    Attributes:
        general: general settings.
        device: compute device; the first one of `devices`.
        devices: devices of the processes that this call starts; one if it trains by itself.
        memory_limit: limit of the memory of the device in bytes; None for no limit.
        execution: executes the training in its precision, eagerly, compiled or captured;
            eagerly and in float32 in other modes.
        checkpoint: file to resume, evaluate, film or export, or folder of an exported policy; None
            to train from scratch, and for an agent that does not learn.
        contract: contract of that policy; None for a file.
        state: content of that file; None to read it where it is loaded.
        agent: agent class and its settings.
        env: environment class and its settings.
        trainer: trainer class and its settings.
        collectors: class of the collectors and its settings.
        evaluation: arguments of `trainers.evaluation.evaluation.Evaluator`.
        demo: arguments of `trainers.evaluation.film.film`.
        record: arguments of `trainers.evaluation.record.record`.
        tune: arguments of `trainers.tuning.options.Tuning`.
        typed: settings as typed, values by dotted name.
        experiment: name of the preset; None without one.
        config: all settings that are saved with a run, as plain values.
        in_place: whether training goes on in the run folder of the checkpoint; otherwise it has a
            new folder, as in a sweep, all runs of which begin with the same checkpoint.
        damaged: newer checkpoints of that folder, which cannot be read.
    """

    general: GeneralSettings
    device: torch.device
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
        general = {n: str(v) if isinstance(v, Path) else v for n, v in vars(self.general).items()}
        preset = {"experiment": self.experiment}
        others = {"collectors": self.collectors.config({}), "demo": self.demo}
        others["tune"] = self.tune
        others["record"] = {n: str(x) if isinstance(x, Path) else x for n, x in self.record.items()}
        return OmegaConf.to_yaml({**general, **preset, **self.config, **others})

    def of_run(self) -> str:
        """Return what a run was made with as the text of a YAML file: settings and versions."""
        machine = {**self.general.of_machine(), "device": str(self.device)}
        machine["collectors"] = self.collectors.config({})
        return OmegaConf.to_yaml({**self.config, **machine, "versions": versions()})

    def share(self, count: int, device: torch.device) -> "Settings":
        """Return the settings of one of several processes that train together.

        Args:
            count: number of processes, each of which has an equal share of every number that counts
                for the whole run.
            device: device of the process.

        Raises:
            ConfigurationError: environments or batches cannot be divided.
        """
        if count > 1 and self.general.graphs == "on":
            raise ConfigurationError("graphs=on: several processes do not capture their updates")
        capacity = self.trainer.settings["replay_capacity"] // count
        return replace(
            self,
            device=device,
            devices=[device],
            env=_divided(self.env, "env", "num_envs", count),
            agent=_divided(self.agent, "agent", "batch_size", count),
            trainer=self.trainer.replaced(replay_capacity=capacity),
            execution=_execution(self.general, device),
        )

    @property
    def folder(self) -> Path:
        """Folder of all runs of this agent in this environment."""
        return self.general.runs / self.env_name / self.config["choices"]["agent"]

    @property
    def env_name(self) -> str:
        """Name of the environment: see `full_name`."""
        return full_name(self.config["choices"]["env"], self.env.settings.get("name"))


@one_line_errors()
def check(typed: Mapping[str, Any], composed: Composed) -> Settings:
    """Check the settings of a command: see `trainers.run.settings_of`.

    Args:
        typed: settings as typed, values by dotted name; they take precedence over the settings of
            a preset or a checkpoint.
        composed: the configuration that `compose` returns for them.
    """
    settings = _check(typed, composed)
    if settings.general.resume is None:
        return settings
    sizes = [f"{group}.{name}" for group, name in AUTOMATIC.items()]
    automatic = [n for n in sizes if OmegaConf.select(composed.config, n) == AUTO]
    run = newest_run(settings.folder, settings.config, automatic)
    if run is None:
        return settings
    count = max(len(settings.devices), num_processes())
    found, state, damaged = newest_readable(run, count)
    # The sizes of the run, whatever this machine would choose.
    typed = {name: value for name, value in typed.items() if name not in automatic}
    return replace(_check(typed, composed, (found, state)), in_place=True, damaged=damaged)


def _check(
    typed: Mapping[str, Any],
    composed: Composed,
    resumed: tuple[Path, dict[str, Any]] | None = None,
) -> Settings:
    """Check the settings of a command, or those with which `resume=auto` goes on with a run.

    Args:
        typed: see `check`.
        composed: see `check`.
        resumed: checkpoint of that run, and its content.
    """
    config, choices = composed
    check_names(config)
    general = general_settings(config)
    devices, count = _devices(general)
    device = devices[0]
    limit = general.device_memory_limit
    bytes_limit = None if limit is None else memory_limit(limit, device)
    found = state = contract = None
    in_place = False
    if general.checkpoint is not None:
        config, found, state = of_checkpoint(typed, composed)
        in_place = goes_on(found)
        general = general_settings(config)
    elif general.policy is not None:
        check_extra(f"policy={general.policy}", RUNS)
        if of_agent := [name for name in typed if name.startswith("agent.")]:
            raise ConfigurationError(
                f"{of_agent[0]}: the files of policy={general.policy} are fixed; leave it out"
            )
        found, contract = general.policy, read_contract(general.policy)
        config = _as_trained(*composed, {"config": contract.config}, found, typed, general.trust)
        general = general_settings(config)
    elif resumed is not None:
        found, state = resumed
        config = _as_trained(*composed, state, found, typed, general.trust)
    check_chosen(config, found)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    unresolved: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    sections = {
        name: check_settings(resolve_name(path), plain.get(name, {}), name, PROVIDED[name])
        for name, path in SECTIONS.items()
    }
    automatic = take_automatic(plain)
    # The trainer first, because schedules of an agent refer to the length of the run.
    components = {
        "trainer": read_component("trainer", plain["trainer"], TorchRLTrainer),
        **{group: read_component(group, plain[group]) for group in ("agent", "env")},
        "collectors": read_component("collectors", plain["collectors"], Collectors),
    }
    is_training = general.mode in ("train", "tune")
    collectors: Collectors = components["collectors"].build() if is_training else Collectors()
    remote = collectors.remote_cores
    components = resolve_sizes(components, automatic, device, bytes_limit, count, remote)
    names = {g: choices[g] or components[g].target.__name__ for g in ("agent", "env")}
    _check_mode(general.mode, components["agent"].target, names["agent"], found)
    _check_tune(general.mode, typed)
    if components["trainer"].settings.get("overlap"):
        agent, env = components["agent"].target, components["env"]
        env_can = capabilities_of(env, device).can_overlap and not remote
        where = "the environment of remote collectors" if remote else env.target.__name__
        overlap_of(True, agent, where, env_can=env_can)
    if general.viewer == "web":
        check_address(general.viewer_host, general.viewer_port)
        if capabilities_of(components["env"], device).can_render is False:
            raise ConfigurationError(
                f"viewer=web: {components['env'].target.__name__} cannot render"
            )
    execution = EAGER
    if is_training:
        check_updates(
            components["agent"].target,
            components["agent"].settings.__getitem__,
            components["trainer"].settings.__getitem__,
            components["env"].settings.get("num_envs") or 1,
        )
        trainer = components["trainer"].settings
        collectors.check(components["env"].settings.get("num_envs"), trainer, count)
        execution = _execution(general, device)
    parts: dict[str, Any] = {**components, **sections, "typed": typed}
    settings = Settings(
        general=general,
        device=device,
        devices=devices,
        memory_limit=bytes_limit,
        execution=execution,
        checkpoint=found,
        contract=contract,
        state=state,
        experiment=choices["experiment"],
        in_place=in_place,
        config={
            "choices": names,
            **general.saved(),
            "evaluation": sections["evaluation"],
            **{group: components[group].config(unresolved[group]) for group in SAVED_GROUPS},
        },
        **parts,
    )
    if count > 1:
        backend_of(device)
        settings.share(count, device)
    return settings


def _devices(general: GeneralSettings) -> tuple[list[torch.device], int]:
    """Return the devices that this call trains on, and the number of processes of the run.

    Raises:
        ConfigurationError: this machine lacks a device, or torchrun starts what it cannot.
    """
    if is_launched():
        if general.devices is not None:
            raise ConfigurationError(
                f"devices={general.devices}: torchrun sets the number of processes; leave it out"
            )
        if general.mode != "train":
            raise ConfigurationError(f"mode={general.mode}: only mode=train runs under torchrun")
    if general.devices is None:
        return [resolve_device(general.device)], num_processes()
    devices = resolve_devices(general.device, general.devices)
    return devices, len(devices)


def _divided(component: Component, group: str, name: str, count: int) -> Component:
    """Return a component with an equal share of one of its numbers.

    Raises:
        ConfigurationError: the number cannot be divided.
    """
    number = component.settings.get(name)
    if not isinstance(number, int) or number % count:
        raise ConfigurationError(
            f"{group}.{name}={number}: {count} processes cannot share it equally; use a multiple "
            f"of {count}"
        )
    return component.replaced(**{name: number // count})


def _execution(general: GeneralSettings, device: torch.device) -> Execution:
    return Execution(device, general.precision, general.compile, general.graphs, general.products)


def _check_mode(mode: Mode, agent: type, name: str, checkpoint: Path | None) -> None:
    """Refuse to train an agent that does not learn, and to act with one that has not learned."""
    if not issubclass(agent, UntrainedAgent):
        if mode == "export":
            check_extra("mode=export", WRITES)
        if mode == "tune" and checkpoint is not None:
            raise ConfigurationError(
                f"mode=tune trains anew in each trial; leave out checkpoint={checkpoint}"
            )
        if mode not in ("train", "tune") and checkpoint is None:
            raise ConfigurationError(
                f"mode={mode} needs a trained policy: checkpoint=runs/... (a run folder or a file)"
            )
    elif mode in ("train", "tune", "export"):
        raise ConfigurationError(
            f"agent={name} does not learn; use mode=demo, mode=eval or mode=record"
        )
    elif checkpoint is not None:
        raise ConfigurationError(f"agent={name} does not learn; leave out checkpoint={checkpoint}")


def _check_tune(mode: Mode, typed: Mapping[str, Any]) -> None:
    """Refuse a search without its package, and settings of a search that is none."""
    names = [name for name in typed if name == "tune" or name.startswith("tune.")]
    if mode != "tune" and names:
        raise ConfigurationError(f"{names[0]}: only mode=tune searches; leave it out")
    if mode == "tune" and find_spec("optuna") is None:
        raise ConfigurationError('mode=tune: optuna not installed; pip install "torchrl-gpu[tune]"')


def of_checkpoint(
    typed: Mapping[str, Any], composed: Composed
) -> tuple[DictConfig, Path, dict[str, Any]]:
    """Return the configuration of a command with `checkpoint=`, the file, and its content.

    Args:
        typed: see `check`.
        composed: see `check`; the choices of agent and environment become those of the run.

    Raises:
        ConfigurationError: the file does not exist, or does not fit the command.
    """
    general = general_settings(composed.config)
    assert general.checkpoint is not None
    is_best = general.mode != "train"
    found = find_policy(general.checkpoint, is_best)
    try:
        state = load_checkpoint(found)
    except ConfigurationError:
        if found.exists():
            raise
        found = find_policy(general.checkpoint, is_best)  # a run that trains has replaced it
        state = load_checkpoint(found)
    if general.mode == "train":
        check_trainable(state, found)
    config = _as_trained(*composed, state, found, typed, general.trust)
    return config, found, state


def _as_trained(
    config: DictConfig,
    choices: dict[str, str | None],
    state: Mapping[str, Any],
    path: Path,
    typed: Mapping[str, Any],
    trust: Sequence[str],
) -> DictConfig:
    """Return the configuration with the settings of the run that wrote the checkpoint.

    A class of the user's own replaces that of the run, whose settings it may not have. The choices
    of agent and environment become those of the run, in place.

    Raises:
        ConfigurationError: the checkpoint belongs to other choices, or names code that the user
            neither typed nor trusts.
    """
    trained = state.get("config") or {}
    for group in ("agent", "env"):
        if group not in trained.keys() | trained.get("choices", {}).keys():
            continue  # a script has built it
        choice = trained.get("choices", {}).get(group)
        if choices[group] not in (None, choice):
            choice = choice or trained[group].get(TARGET)
            raise ConfigurationError(
                f"{group}={choices[group]}: {path} was trained with {group}={choice}; leave out "
                f"{group}="
            )
        if f"{group}.{TARGET}" not in typed:
            choices[group] = choice
    names = (*SAVED_GROUPS, "evaluation", *GeneralSettings().saved())
    saved = OmegaConf.create({name: trained[name] for name in names if name in trained})
    for name, value in typed.items():
        section, _, last = name.rpartition(".")
        if last == TARGET and OmegaConf.select(saved, name) not in (None, value):
            OmegaConf.update(saved, section, {}, merge=False)
    known: Any = OmegaConf.to_container(config)
    config = joined(config, saved, typed=typed)
    merged: Any = OmegaConf.to_container(config)
    setting = "checkpoint" if config.get("policy") is None else "policy"
    check_trusted(f"{setting}={path}", merged, trust, known=[name for _, name in named(known)])
    return config
