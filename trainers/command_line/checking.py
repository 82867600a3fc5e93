"""The check of all settings, before anything is built."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import torch
from omegaconf import OmegaConf

from agents.untrained import UntrainedAgent
from torchrl_gpu.arguments import check_settings
from torchrl_gpu.checkpoints.contents import reading
from torchrl_gpu.devices.device import resolve_device, resolve_devices
from torchrl_gpu.devices.memory import memory_limit
from torchrl_gpu.distributed import backend_of
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER
from torchrl_gpu.extras import check_extra
from torchrl_gpu.place import is_launched, num_processes
from trainers.collecting.collectors import Collectors
from trainers.command_line.composition import Composed, one_line_errors
from trainers.command_line.early import check_chosen, check_names, general_settings
from trainers.command_line.origin import Origin, origin_of, with_settings_of
from trainers.command_line.schema import GeneralSettings, Mode
from trainers.command_line.settings import Settings, execution_of
from trainers.command_line.sizes import resolve_sizes
from trainers.components.choices import SAVED_GROUPS
from trainers.components.component import Component, read_component
from trainers.components.pairing import capabilities_of, overlap_of
from trainers.components.sections import (
    AUTO,
    AUTOMATIC,
    BASES,
    MODES,
    PROVIDED,
    SECTIONS,
    take_automatic,
)
from trainers.components.trust import check_plain
from trainers.evaluation.evaluation import evaluations_of
from trainers.evaluation.film import check_num_envs
from trainers.runs.folders import newest_run
from trainers.runs.loggers import check_installed
from trainers.runs.policy_files import newest_readable
from trainers.training.experience import check_updates
from trainers.viewing.page import free_port

# Settings of a film that say nothing about a viewer.
_OF_FILM: Final = ("demo.episodes", "demo.video")


@one_line_errors()
def check(typed: Mapping[str, Any], composed: Composed) -> Settings:
    """Check the settings of a command: see `trainers.run.settings_of`."""
    check_names(composed.config)
    devices = _devices(general_settings(composed.config))
    settings = _check(typed, devices, *origin_of(typed, composed))
    if settings.general.resume is None:
        return settings
    sizes = [f"{group}.{name}" for group, name in AUTOMATIC.items()]
    automatic = [n for n in sizes if OmegaConf.select(composed.config, n) == AUTO]
    run = newest_run(settings.folder, settings.config, automatic)
    if run is None:
        return settings
    found, state, damaged = newest_readable(run, devices[1])
    # The sizes of the run, not those that this machine would choose.
    typed = {name: value for name, value in typed.items() if name not in automatic}
    origin = Origin(found, state, in_place=True, damaged=damaged)
    return _check(typed, devices, with_settings_of(origin, typed, composed), origin)


def _check(
    typed: Mapping[str, Any],
    devices_and_count: tuple[list[torch.device], int],
    composed: Composed,
    origin: Origin,
) -> Settings:
    """Check the settings of a command with those of its origin."""
    (devices, count), (config, choices) = devices_and_count, composed
    device, general = devices[0], general_settings(config)
    limit = general.device_memory_limit
    bytes_limit = None if limit is None else memory_limit(limit, device)
    check_chosen(config, origin.checkpoint)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    unresolved: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    sections = {
        name: check_settings(resolve_name(path), plain.get(name, {}), name, PROVIDED[name])
        for name, path in SECTIONS.items()
    }
    _check_used(general, typed)
    automatic = take_automatic(plain)
    components = {group: read_component(group, plain[group]) for group in BASES}
    trains = general.mode in ("train", "tune")
    collectors: Collectors = components["collectors"].build() if trains else Collectors()
    remote = collectors.remote_cores
    components = resolve_sizes(components, automatic, device, bytes_limit, count, remote)
    names = {g: choices[g] or components[g].target.__name__ for g in ("agent", "env")}
    _check_mode(general.mode, components["agent"].target, names["agent"], origin.checkpoint)
    can = capabilities_of(components["env"], device)
    _check_viewer(general, typed, components["env"], can)
    if general.mode == "demo" or general.viewer == "web":
        # The viewer shows them one after the other.
        several = can.renders_several or general.viewer == "web"
        check_num_envs(sections["demo"]["num_envs"], names["env"], several=several)
    if trains:
        _check_goes_on(typed, components["trainer"].settings, origin)
        _check_training(components, collectors, count, can)
    parts: dict[str, Any] = {**components, **sections, **origin._asdict()}
    settings = Settings(
        general=general,
        typed=typed,
        devices=devices,
        memory_limit=bytes_limit,
        execution=execution_of(general, device) if trains else EAGER,
        experiment=choices["experiment"],
        config={
            "choices": names,
            **general.saved(),
            "evaluation": sections["evaluation"],
            **{group: components[group].config(unresolved[group]) for group in SAVED_GROUPS},
        },
        **parts,
    )
    if trains or general.mode == "export":  # which save the settings
        check_plain("this command", settings.config)
    if count > 1:
        backend_of(device)
        settings.share(count, device)
    return settings


def _devices(general: GeneralSettings) -> tuple[list[torch.device], int]:
    """Return the devices that this call trains on, and the number of processes of the run."""
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


def _check_mode(mode: Mode, agent: type, name: str, checkpoint: Path | None) -> None:
    """Refuse to train an agent that does not learn, and to act with one that has not learned."""
    if not issubclass(agent, UntrainedAgent):
        if mode == "export":
            check_extra("mode=export", "export", "onnx", "onnxscript", "onnxruntime")
            if torch.__version__ < "2.6":
                raise ConfigurationError(
                    f"mode=export: torch {torch.__version__} is too old; install 2.6"
                )
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


def _check_used(general: GeneralSettings, typed: Mapping[str, Any]) -> None:
    """Refuse typed settings that the mode does not use, and a search without its package."""
    for name in typed:
        section = name.partition(".")[0]
        modes = MODES.get(section, (general.mode,))
        # The viewer, which trainings have too, shows a policy by the settings of a film.
        if general.mode not in modes and (section != "demo" or general.viewer == "off"):
            using = ", ".join(f"mode={mode}" for mode in modes)
            raise ConfigurationError(
                f"{name}: mode={general.mode} does not use it (only {using}); leave it out"
            )
        if name in ("viewer_host", "viewer_port") and general.viewer == "off":
            raise ConfigurationError(f"{name}: only viewer=web has a viewer; leave it out")
    if general.mode == "tune":
        check_extra("mode=tune", "tune", "optuna")


def _check_viewer(
    general: GeneralSettings, typed: Mapping[str, Any], env: Component, can: Capabilities
) -> None:
    """Refuse a viewer that would make a film, have no free address, or no picture."""
    if general.viewer == "off":
        return
    if of_film := [name for name in typed if name in _OF_FILM]:
        raise ConfigurationError(
            f"{of_film[0]}: viewer=web shows episode after episode and makes no film; leave it out"
        )
    check_extra("viewer=web", "viewer", "viser")
    free_port(general.viewer_host, general.viewer_port)
    if can.can_render is False:
        raise ConfigurationError(f"viewer=web: {env.target.__name__} cannot render")


def _check_goes_on(typed: Mapping[str, Any], trainer: Mapping[str, Any], origin: Origin) -> None:
    """Refuse a typed end that the run to resume has reached, unless it is that of the run."""
    if origin.checkpoint is None or origin.state is None:
        return
    own = origin.state["config"].get("trainer", {})
    ends = ("total_frames", "stop_at_score")
    if all(f"trainer.{name}" not in typed or trainer[name] == own.get(name) for name in ends):
        return
    total_frames, goal = (trainer[name] for name in ends)
    frames = origin.state["frames"]
    if frames >= total_frames:
        raise ConfigurationError(
            f"trainer.total_frames={total_frames}: the run has {frames:,} frames already; give more"
        )
    with reading(origin.checkpoint):
        evaluations = evaluations_of(origin.state)
    best = max((each.score for each in evaluations.values()), default=-math.inf)
    if goal is not None and best >= goal:
        raise ConfigurationError(
            f"trainer.stop_at_score={goal:g}: the run has reached {best:g} already; give more, or "
            "null"
        )


def _check_training(
    components: Mapping[str, Component], collectors: Collectors, count: int, can: Capabilities
) -> None:
    """Refuse a training without an update, and overlap, loggers and collectors it cannot have."""
    agent, env, trainer = components["agent"], components["env"], components["trainer"].settings
    is_remote = collectors.remote_cores is not None
    name = "the environment of remote collectors" if is_remote else env.target.__name__
    env_can = can.can_overlap and not is_remote
    overlap_of(trainer["overlap"], agent.target, name, env_can=env_can)
    num_envs = env.settings.get("num_envs")
    settings = agent.settings.__getitem__, trainer.__getitem__
    with suppress(KeyError):  # an own constructor may lack settings
        check_updates(agent.target, *settings, num_envs or 1)
    check_installed(trainer["loggers"])
    collectors.check(num_envs, trainer, count)
