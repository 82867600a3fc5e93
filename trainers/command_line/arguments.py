"""Arguments as typed: settings by name, and the runs of a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.composition import hydra_ready
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import GROUPS, SEARCH_PATH


def read_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the value of each setting, by its dotted name.

    Values have Hydra's grammar: `[64, 64]`, `1e-4`, `null`, `${trainer.total_frames}`. Choices and
    paths are taken as they stand, with spaces, commas and brackets.

    Args:
        arguments: settings as typed, `name=value`; see `check_choices`.

    Raises:
        ConfigurationError: the value of an argument is missing, cannot be read, or is a list of
            values for a sweep.
    """
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
            raise ConfigurationError(f"{argument}: several values need -m")
        values[name] = override.value()
    return values


def runs_of(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the title and the settings of each run of a sweep.

    Args:
        arguments: settings as typed; those with several values, as in `seed=1,2`,
            `seed=range(1,4)` or `agent=glob(*)`, are combined with each other.

    Returns:
        The title names the values that differ, as in `run 2 of 3: seed=2`.

    Raises:
        ConfigurationError: an argument cannot be read, or its values cannot be listed.
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
        title = f"run {number} of {len(combinations)}: {' '.join(varied)}"
        runs.append((title, settings))
    return runs


def _parsed(argument: str, parser: OverridesParser) -> Override:
    try:
        return parser.parse_override(argument)
    except HydraException as error:
        raise ConfigurationError(f"{argument}: {str(error).splitlines()[0]}") from None
