"""Checks of settings that do without torch: names, types and ranges, before seconds of imports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf

from torchrl_gpu.arguments import check_settings, parameters_of, suggest
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.composition import one_line_errors
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import GROUPS, choices_of
from trainers.components.outline import outline_of
from trainers.components.sections import BASES, PROVIDED, SECTIONS, TARGET, parts_of, take_automatic

_UNTRAINED: Final = "choose an agent that does not learn, as in agent=random env=fanuc"


@one_line_errors()
def check_early(config: DictConfig) -> None:
    """Refuse settings that do not fit the classes of this library, by the outlines of the classes.

    A class of the user is left to `checking.check`, and so are all classes where a checkpoint
    names them.
    """
    check_names(config)
    general = general_settings(config)
    if general.checkpoint is not None or general.policy is not None:
        return
    check_chosen(config)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    for name, path in SECTIONS.items():
        _check(name, path, plain.get(name, {}))
    take_automatic(plain)
    for group in BASES:
        section = plain[group]
        if isinstance(section, Mapping) and TARGET in section:
            _check(group, section[TARGET], section)


def check_names(config: DictConfig) -> None:
    """Refuse a setting that is neither general nor belongs to a section."""
    known = [*parameters_of(GeneralSettings), *GROUPS, *SECTIONS, "experiment"]
    for name in map(str, config):
        if name == "hydra/launcher":
            raise ConfigurationError(f"{name}: only a sweep has a launcher; add -m")
        if name not in known:
            paths = {g: OmegaConf.select(config, f"{g}.{TARGET}") for g in GROUPS} | SECTIONS
            outlines = {g: outline_of(path) for g, path in paths.items() if path}
            places = [f"{g}.{name}" for g, o in outlines.items() if o and name in parameters_of(o)]
            raise ConfigurationError(f"{name}: unknown setting{suggest(name, known, places)}")


def check_chosen(config: DictConfig, checkpoint: Path | None = None) -> None:
    """Refuse a command without agent, environment or a checkpoint that names them."""
    mode = general_settings(config).mode
    for group in ("agent", "env"):
        if OmegaConf.select(config, f"{group}.{TARGET}") is None:
            if group == "agent" and checkpoint is None and mode not in ("train", "tune"):
                instead = "" if mode == "export" else f"; without one, {_UNTRAINED}"
                raise ConfigurationError(
                    f"mode={mode}: checkpoint=RUN is missing, a run folder or a file{instead}"
                )
            known = ", ".join(choices_of(group))
            lacks = "" if checkpoint is None else f", because {checkpoint} does not name it"
            raise ConfigurationError(f"{group}= is missing{lacks}; choose one of: {known}")


def general_settings(config: DictConfig) -> GeneralSettings:
    """Return the general settings of a configuration."""
    values: dict[str, Any] = {}
    for name in parameters_of(GeneralSettings):
        if name in config:
            value = config[name]  # resolved, also where it refers to a section
            values[name] = list(value) if isinstance(value, ListConfig) else value
    return GeneralSettings(**values)


def _check(group: str, path: str, settings: Any) -> None:
    """Check the settings of a class of this library, and of its parts."""
    outline = outline_of(path)
    if outline is None or not isinstance(settings, Mapping):
        return
    parts = parts_of(outline)
    for name, (default, _) in parts.items():
        part = settings.get(name)
        if isinstance(part, Mapping):
            default_path = f"{default.__module__}.{default.__qualname__}"
            _check(f"{group}.{name}", part.get(TARGET, default_path), part)
    rest = {name: v for name, v in settings.items() if name != TARGET and name not in parts}
    check_settings(outline, rest, group, PROVIDED.get(group, ()), parts)
