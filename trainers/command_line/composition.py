"""Arguments as typed, and the configuration that Hydra composes of them and the chosen files."""

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from torchrl_gpu.errors import ConfigurationError, one_line
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import (
    CONFIGS,
    GROUPS,
    SEARCH_PATH,
    check_choices,
    choices_of,
    folders_of,
)

# Hydra composes by one object of the process, which a single thread can use at a time.
_one_thread = threading.Lock()


class Composed(NamedTuple):
    """Configuration of a command.

    Attributes:
        config: settings of the files, overridden by the typed ones.
        choices: names of agent, environment, trainer and experiment; None for a group without a
            choice, as for the user's own class.
    """

    config: DictConfig
    choices: dict[str, str | None]


def read_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the value of each setting, by its dotted name.

    Values have Hydra's grammar: `[64, 64]`, `1e-4`, `null`, `${trainer.total_frames}`. Choices and
    paths are taken as they stand, with spaces, commas and brackets. Unknown choices are refused,
    see `check_choices`.
    """
    check_choices(arguments)
    values: dict[str, Any] = {}
    for argument in arguments:
        name, _, text = argument.partition("=")
        if name in GeneralSettings.paths() and not text:
            raise ConfigurationError(f"{argument}: the value is missing")
        if name in (*GROUPS, "experiment", SEARCH_PATH, *GeneralSettings.paths()):
            values[name] = None if text == "null" else text
            continue
        override = _parsed(argument, OverridesParser.create())
        if override.is_sweep_override():
            raise ConfigurationError(f"{argument}: several values need -m; {_advice(argument)}")
        values[name] = override.value()
    return values


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        title: number of the run and the settings that differ, as in `run 2 of 3: seed=2`.
        settings: all settings of the run as typed.
        varied: the settings that differ between the runs, by name.
    """

    title: str
    settings: list[str]
    varied: dict[str, str]


def runs_of(arguments: Sequence[str]) -> list[SweepRun]:
    """Return the runs of a sweep.

    Args:
        arguments: settings as typed; those with several values, as in `seed=1,2`,
            `seed=range(1,4)` or `agent=glob(*)`, are combined with each other.
    """
    options = []
    with hydra_ready() as ready:
        parser = OverridesParser.create(ready.config_loader())
        for argument in arguments:
            name = argument.partition("=")[0]
            values = [argument]
            if "=" in argument and name not in GeneralSettings.paths():
                override = _parsed(argument, parser)
                if override.is_discrete_sweep():
                    values = [f"{name}={value}" for value in override.sweep_string_iterator()]
                elif override.is_sweep_override():
                    raise ConfigurationError(f"{argument}: an interval has no list of values")
            options.append(values)
    combinations = [list(combination) for combination in itertools.product(*options)]
    runs = []
    for number, settings in enumerate(combinations, start=1):
        varied = [s for s, values in zip(settings, options, strict=True) if len(values) > 1]
        count = f"run {number} of {len(combinations)}"
        title = f"{count}: {' '.join(varied)}" if varied else count
        runs.append(SweepRun(title, settings, dict(s.split("=", 1) for s in varied)))
    return runs


def compose(settings: Mapping[str, Any]) -> Composed:
    """Return the configuration of a command and the choice of each config group.

    The configuration holds the settings of the YAML files of the choices, of the preset and of the
    user; defaults stand in the constructors.
    """
    with hydra_ready():
        composed = hydra.compose("config", _overrides_of(settings), return_hydra_config=True)
    choices = {g: composed.hydra.runtime.choices[g] for g in (*GROUPS, "experiment")}
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return Composed(joined(composed, typed=settings), choices)


def joined(*configs: DictConfig, typed: Mapping[str, Any]) -> DictConfig:
    """Return the merged configurations, and on top the typed settings that choose no file."""
    settings, files = OmegaConf.create(), OmegaConf.merge(*configs)
    for name, value in typed.items():
        if name not in (*GROUPS, "experiment", SEARCH_PATH):
            whole = name.rpartition(".")[0]
            if OmegaConf.is_list(OmegaConf.select(files, whole)):
                raise ConfigurationError(f"{name}: {whole} is a list; write {whole}=[...]")
            OmegaConf.update(settings, name, value)
    merged = OmegaConf.merge(files, settings)
    assert isinstance(merged, DictConfig)
    return merged


def show_info(kind: str, settings: Mapping[str, Any]) -> None:
    """Print Hydra's information about the composition of a command, as in `--info defaults`."""
    with hydra_ready() as ready:
        composer = ready.hydra
        assert composer is not None
        composer.show_info(kind, config_name="config", overrides=_overrides_of(settings))


def _overrides_of(settings: Mapping[str, Any]) -> list[str]:
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
        return settings["experiment"]
    env = settings.get("env")
    if env == "gym":
        env = str(settings.get("env.name")).rpartition(":")[2]
    preset = f"{env}/{settings.get('agent')}"
    return preset if preset in choices_of("experiment", *folders_of(settings)) else None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors of interpolations such as `${env.foo}` in one line, with the setting."""
    try:
        yield
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if error.full_key else ""
        raise ConfigurationError(f"{where}{str(error).splitlines()[0]}") from None


def _parsed(argument: str, parser: OverridesParser) -> Override:
    try:
        return parser.parse_override(argument)
    except HydraException as error:
        why = str(error).splitlines()[0]
        raise ConfigurationError(f"{argument}: {why}; {_advice(argument)}") from None


def _advice(argument: str) -> str:
    """Return how to type the value as one text, such as a path with a comma."""
    name, _, text = argument.partition("=")
    return f"one text needs quotes: \"{name}='{text}'\""


@contextmanager
def hydra_ready() -> Iterator[GlobalHydra]:
    """Let the block use Hydra with our configuration files, while other threads wait."""
    with _one_thread, hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            yield GlobalHydra.instance()
        except (HydraException, YAMLError) as error:
            raise ConfigurationError(one_line(error)) from None
