"""Composition of the configuration: the chosen YAML files, joined by Hydra, and typed settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import GROUPS, SEARCH_PATH, choices_of, folders_of

# Hydra composes by one object of the process, which a single thread can use at a time.
_one_thread = threading.Lock()


@contextmanager
def hydra_ready() -> Iterator[GlobalHydra]:
    """Let the block use Hydra with our configuration files, while other threads wait."""
    with _one_thread, hydra.initialize_config_module("configs", version_base="1.3"):
        yield GlobalHydra.instance()


def compose(settings: Mapping[str, Any]) -> tuple[DictConfig, dict[str, str | None]]:
    """Return the configuration of a command and the choice of each config group.

    The configuration holds what the YAML files of the choices, those of the preset and the user
    say; defaults stand in the constructors.

    Args:
        settings: settings as typed, values by dotted name.

    Returns:
        The configuration, and the names of agent, environment, trainer and experiment; None for a
        group without a choice, as for the user's own class.

    Raises:
        ConfigurationError: Hydra cannot compose the files.
    """
    try:
        with hydra_ready():
            composed = hydra.compose("config", overrides_of(settings), return_hydra_config=True)
    except HydraException as error:
        raise ConfigurationError(" ".join(str(error).split())) from None
    choices = {g: composed.hydra.runtime.choices[g] for g in (*GROUPS, "experiment")}
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return add_settings(composed, settings), choices


def add_settings(config: DictConfig, settings: Mapping[str, Any]) -> DictConfig:
    """Return a configuration with the typed settings on top, all but the choices of files."""
    typed = OmegaConf.create()
    for name, value in settings.items():
        if name not in (*GROUPS, "experiment", SEARCH_PATH):
            OmegaConf.update(typed, name, value)
    merged = OmegaConf.merge(config, typed)
    assert isinstance(merged, DictConfig)
    return merged


def show_info(kind: str, settings: Mapping[str, Any]) -> None:
    """Print what Hydra knows about the composition of a command, as in `--info defaults`."""
    with hydra_ready() as ready:
        composer = ready.hydra
        assert composer is not None
        try:
            composer.show_info(kind, config_name="config", overrides=overrides_of(settings))
        except HydraException as error:
            raise ConfigurationError(" ".join(str(error).split())) from None


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the arguments with which Hydra selects the YAML files of a command."""
    names = (*GROUPS, SEARCH_PATH)
    overrides = [f"{name}={settings[name]}" for name in names if settings.get(name) is not None]
    if preset := _preset_of(settings):
        overrides.append(f"experiment={preset}")
    return overrides


def _preset_of(settings: Mapping[str, Any]) -> str | None:
    """Return the chosen preset, or that of agent and environment if there is one.

    The presets of a Gymnasium environment stand in a folder of its name, which may follow the name
    of a module: `module:Name-v0`.
    """
    if "experiment" in settings:
        experiment: str | None = settings["experiment"]
        return experiment
    env = settings.get("env")
    if env == "gym":
        env = str(settings.get("env.name")).rpartition(":")[2]
    preset = f"{env}/{settings.get('agent')}"
    return preset if preset in choices_of("experiment", *folders_of(settings)) else None
