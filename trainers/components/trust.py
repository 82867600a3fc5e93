"""Values that the configuration of a file may contain: plain ones, and names of trusted classes."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrl_gpu.errors import ConfigurationError, shortened
from trainers.components.choices import SAVED_GROUPS
from trainers.components.component import FOLLOWS
from trainers.components.sections import TARGET

# Packages whose classes a file may always name, by group, those of its components included.
_LIBRARY = {
    "agent": ("agents",),
    "env": ("envs", "gymnasium.wrappers"),
    "trainer": ("trainers",),
}

# A wrapper of Gymnasium that writes where its arguments say.
_WRITES = "RecordVideo"

# Settings that follow one another end after as many steps, so that a circle is noticed.
_MAX_STEPS = 10

# OmegaConf fails on sections that are nested a hundred times.
_MAX_DEPTH = 20

_MAX_VALUES = 10_000  # of a section; OmegaConf takes .1 ms for each
_MAX_NAME = 200

_CONTAINERS = Mapping | list | tuple


def check_plain(source: str, config: Any) -> None:
    """Refuse a configuration in a file, or for one, that is more than sections of plain values.

    A setting may follow a number of another one, as in `${trainer.total_frames}`. Every other
    interpolation is refused, because OmegaConf could run a resolver or read the environment.

    Args:
        source: setting that names the file of the configuration, as in `checkpoint=FILE`.
        config: content of the file, nothing of it resolved.
    """
    damaged = ConfigurationError(f"{source}: its configuration is damaged or too large")
    if not isinstance(config, Mapping):
        raise damaged
    if not all(
        isinstance(config.get(name, {}), Mapping)
        for name in (*SAVED_GROUPS, "choices", "evaluation")
    ):
        raise damaged
    sections = [(config.get(name), _MAX_VALUES) for name in (*SAVED_GROUPS, "evaluation")]
    if not all(_is_of_modest_size(*section) for section in [*sections, (config, math.inf)]):
        raise damaged
    for name, choice in config.get("choices", {}).items():
        # The folder of the run is named after them.
        is_name = isinstance(choice, str) and _is_printed(choice) and len(choice) <= _MAX_NAME
        if not is_name or Path(choice).is_absolute() or ".." in Path(choice).parts:
            shown = shortened(str(choice))
            raise ConfigurationError(f"{source}: choices.{name}={shown} is not a name")
    for path, value in _leaves(config):
        name = ".".join(path)
        if not (value is None or isinstance(value, bool | int | float | str | _CONTAINERS)):
            raise ConfigurationError(f"{source}: its setting {name} is not a plain value")
        if isinstance(value, str) and "${" in value and followed(value, config) is None:
            raise ConfigurationError(
                f"{source}: its setting {name}={value[:80]} is not a plain value; nothing "
                "in a file is resolved"
            )
        is_nan = isinstance(value, float) and math.isnan(value)
        if is_nan or (isinstance(value, str) and not _is_printed(value)):
            raise ConfigurationError(
                f"{source}: its setting {name} is NaN or has control characters"
            )


def _is_of_modest_size(config: Any, most: float) -> bool:
    """Return whether names and depth are those of a configuration, with `most` values at most."""
    return all(
        count <= most
        and len(path) <= _MAX_DEPTH
        and all(len(name) <= _MAX_NAME and _is_printed(name) for name in path)
        for count, (path, _) in enumerate(_leaves(config), start=1)
    )


def _is_printed(text: str) -> bool:
    """Return whether a text can be shown and written, as neither control nor half characters."""
    return all(each.isprintable() or each.isspace() for each in text)


def followed(value: str, config: Mapping[str, Any]) -> float | None:
    """Return the number that a setting follows, as in `${trainer.total_frames}`.

    None if it follows no number of this configuration, which has all sections.
    """
    found: Any = value
    for _ in range(_MAX_STEPS):
        reference = FOLLOWS.fullmatch(found) if isinstance(found, str) else None
        if reference is None:
            break
        found = config
        for name in reference[1].split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def resolved(value: Any, config: Mapping[str, Any]) -> Any:
    """Return a value of a configuration, in which numbers replace the settings that follow them."""
    if isinstance(value, Mapping):
        return {name: resolved(each, config) for name, each in value.items()}
    number = followed(value, config) if isinstance(value, str) else None
    return value if number is None else number


def check_trusted(
    source: str, config: Mapping[str, Any], trust: Sequence[str], known: Iterable[str] = ()
) -> None:
    """Refuse a configuration that names code which the user does not trust; nothing is imported.

    Args:
        source: setting that names the file of the configuration, as in `checkpoint=FILE`.
        config: sections of agent, environment and trainer, or some of them.
        trust: packages of the user, whose classes may be imported.
        known: names that the user typed.
    """
    foreign = _foreign(config, trust, known)
    if foreign:
        setting, name = next(iter(foreign.items()))
        raise ConfigurationError(
            f"{source}: it names {setting}={name}, which is not part of this library; "
            f"if you trust that code, add {_trusting(foreign.values())}"
        )


def trust_arguments(config: Mapping[str, Any]) -> list[str]:
    """Return the arguments with which a command loads a configuration that the user typed."""
    foreign = _foreign(config)
    return [_trusting(foreign.values())] if foreign else []


def named(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting that names code, and its value.

    It is a class, a Gymnasium environment behind its module, as in `env.name=module:Name-v0`, or a
    wrapper of one.
    """
    for path, value in _leaves({group: config.get(group) for group in SAVED_GROUPS}):
        setting = ".".join(path)
        is_class = TARGET in setting.split(".")
        is_wrapper = path[:-1] == ("env", "wrappers")
        if is_class or is_wrapper or (setting == "env.name" and ":" in str(value)):
            yield setting, value


def _foreign(
    config: Mapping[str, Any], trust: Sequence[str] = (), known: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the settings that name code outside of the library and the trusted packages."""
    typed = set(known)
    return {
        setting: name
        for setting, name in named(config)
        if not (isinstance(name, str) and (name in typed or _is_trusted(setting, name, trust)))
    }


def _trusting(names: Iterable[Any]) -> str:
    """Return the setting that trusts the packages of names."""
    packages = sorted({re.split(r"[.:]", str(name))[0] for name in names})
    return f"trust={packages[0]}" if len(packages) == 1 else f"trust=[{','.join(packages)}]"


def _is_trusted(setting: str, name: str, trust: Sequence[str]) -> bool:
    package = name.partition(":")[0]
    is_foreign = ":" in name or name.endswith(f".{_WRITES}")
    own = () if is_foreign else _LIBRARY[setting.partition(".")[0]]
    return any(f"{package}.".startswith(f"{trusted}.") for trusted in (*own, *trust))


def _leaves(config: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of everything in a configuration, empty sections too."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), config)]  # a file may nest deeply
    while pending:
        path, value = pending.pop()
        if not (isinstance(value, _CONTAINERS) and value):
            yield path, value
            continue
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        pending += reversed([((*path, str(key)), each) for key, each in inner])
