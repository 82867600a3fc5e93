"""Components: classes together with the checked settings of their constructors."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torchrl_gpu.arguments import CheckedFields, check_settings, parameters_of
from torchrl_gpu.errors import ConfigurationError
from trainers.components.sections import BASES, PROVIDED, TARGET, parts_of

_logger = logging.getLogger(__name__)

# An interpolation of a setting that is saved in the same checkpoint: `${trainer.total_frames}`.
FOLLOWS = re.compile(r"\$\{((?:agent|env|trainer)(?:\.[A-Za-z_]\w*)+)\}")


@dataclass(frozen=True)
class Component:
    """A class and the checked settings of its constructor.

    Attributes:
        path: dotted path of the class, as in the configuration.
        target: class to build.
        settings: constructor arguments by name; nested components, such as the encoder of an
            agent, are built together with the class.
    """

    path: str
    target: type
    settings: dict[str, Any]

    def replaced(self, **settings: Any) -> Component:
        """Return a copy with other settings; drop those that the constructor does not take."""
        takes = parameters_of(self.target)
        fitting = {name: value for name, value in settings.items() if name in takes}
        return Component(self.path, self.target, {**self.settings, **fitting})

    def build(self, *args: Any, **provided: Any) -> Any:
        """Build the class with arguments of the program; drop those that it does not take."""
        return self.target(*args, **self.replaced(**provided).arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the settings as constructor arguments, nested components built."""
        return {
            name: value.build() if isinstance(value, Component) else value
            for name, value in self.settings.items()
        }

    def differing(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults of the constructor, as plain values."""
        section: dict[str, Any] = {}
        parameters = parameters_of(self.target)
        for name, value in self.settings.items():
            default = parameters[name].default if name in parameters else None
            if isinstance(value, Component):
                part = value.differing()
                if value.target is not type(default):
                    part = {TARGET: value.path, **part}
                if part:
                    section[name] = part
            elif _list_of(value) != _list_of(default):
                section[name] = _list_of(value)
        return section

    def config(self, unresolved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings as plain values, from which `read_component` restores the component.

        Args:
            unresolved: configuration section of the component. Settings that follow a number of
                another one, such as `${trainer.total_frames}`, are kept so, and therefore follow
                later changes.
        """
        config: dict[str, Any] = {TARGET: self.path}
        for name, value in self.settings.items():
            before = unresolved.get(name)
            if isinstance(value, Component):
                config[name] = value.config(before if isinstance(before, Mapping) else {})
            else:
                is_number = isinstance(value, int | float)
                follows = is_number and isinstance(before, str) and FOLLOWS.fullmatch(before)
                config[name] = before if follows else value
        return config


def _list_of(value: Any) -> Any:
    """Return a tuple as a list, as YAML has it, and other values as they are."""
    return list(value) if isinstance(value, tuple) else value


def record(**built: CheckedFields) -> dict[str, Any]:
    """Return class and settings of built components as plain values, for `read_component`.

    Args:
        built: components by group.

    Returns:
        The sections by group, without components that can be built in their own script alone, as a
        warning says: those of a class that cannot be imported, or with settings that are not plain
        values.
    """
    sections = {}
    for group, component in built.items():
        try:
            sections[group] = _section_of(component, PROVIDED[group])
        except (AttributeError, TypeError) as error:
            _logger.warning("%s: %s; only its script can load it from a checkpoint", group, error)
    return sections


def _section_of(component: CheckedFields, provided: Sequence[str] = ()) -> dict[str, Any]:
    target = type(component)
    if target.__module__ == "__main__" or not target.__qualname__.isidentifier():
        raise TypeError(f"{target.__qualname__} is not in a module that can be imported")
    section: dict[str, Any] = {TARGET: f"{target.__module__}.{target.__qualname__}"}
    names = [name for name in parameters_of(target) if name not in provided]
    return section | {name: _plain(getattr(component, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, CheckedFields):
        return _section_of(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def read_component(group: str, section: Any, kind: type | None = None) -> Component:
    """Import the class of a configuration section and check the settings against its constructor.

    Args:
        group: name of the section, as in `agent` or `agent.encoder`.
        section: mapping of `_target_` and the settings.
        kind: required base class of a part; None for those of the group.
    """
    if not isinstance(section, Mapping) or section.get(TARGET) is None:
        raise ConfigurationError(f"{group}: a class is missing; use {group}._target_=package.Class")
    settings = dict(section)
    path = settings.pop(TARGET)
    target = find_class(group, path, kind)
    parts = {
        name: _read_part(f"{group}.{name}", default, settings.pop(name, None), annotation)
        for name, (default, annotation) in parts_of(target).items()
    }
    checked = check_settings(target, settings, group, PROVIDED.get(group, ()), parts)
    return Component(path, target, {**checked, **parts})


def find_class(group: str, path: Any, kind: type | None = None) -> type:
    """Import a class by its dotted path; see `read_component` for the other arguments."""
    module, _, name = str(path).rpartition(".")
    if not module:
        raise ConfigurationError(f"{group}._target_={path}: write package.Class")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{group}._target_={path}: {error}") from None
    kinds = tuple(map(resolve_name, BASES[group])) if kind is None else (kind,)
    if not (isinstance(target, type) and issubclass(target, kinds)):
        bases = " or ".join(f"{base.__module__}.{base.__name__}" for base in kinds)
        raise ConfigurationError(f"{group}._target_={path}: not a subclass of {bases}")
    if inspect.isabstract(target):
        missing = ", ".join(sorted(target.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"{group}._target_={path}: abstract; it does not define {missing}")
    return target


def _read_part(group: str, default: type, section: Any, kind: type) -> Component:
    if section is not None and not isinstance(section, Mapping):
        raise ConfigurationError(
            f"{group}={section}: use {group}.NAME=... for its settings, or "
            f"{group}._target_=package.Class for your own class"
        )
    path = f"{default.__module__}.{default.__qualname__}"
    part = read_component(group, {TARGET: path, **(section or {})}, kind)
    try:
        part.build()
    except (TypeError, ValueError) as error:  # a ConfigurationError is a ValueError
        text = str(error)
        raise ConfigurationError(text if text.startswith(group) else f"{group}: {text}") from error
    return part
