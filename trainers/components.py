"""Classes with the checked settings to build them with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from torchrl_gpu.arguments import Configurable, check_settings, constructor_of, parameters_of
from torchrl_gpu.errors import ConfigurationError
from trainers.registry import find_class

TARGET = "_target_"

# A setting that follows another one that is saved with it.
_FOLLOWS = re.compile(r"\$\{(agent|env|trainer)\.")


@dataclass(frozen=True)
class Component:
    """A class and the checked settings to build it with.

    Attributes:
        path: dotted path of the class, as it was asked for.
        target: the class.
        settings: arguments of its constructor by name; those that are components themselves, such
            as the encoder of an agent, are built with it.
    """

    path: str
    target: type
    settings: dict[str, Any]

    def replaced(self, **settings: Any) -> Component:
        """Return the same with other settings, as far as its constructor takes them."""
        takes = parameters_of(self.target)
        fitting = {name: value for name, value in settings.items() if name in takes}
        return Component(self.path, self.target, {**self.settings, **fitting})

    def build(self, *args: Any, **provided: Any) -> Any:
        """Build the class; the program provides those arguments that its constructor takes."""
        takes = parameters_of(self.target)
        fitting = {name: value for name, value in provided.items() if name in takes}
        settings = {
            name: value.build() if isinstance(value, Component) else value
            for name, value in self.settings.items()
        }
        return self.target(*args, **settings, **fitting)

    def config(self, unresolved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings as plain values, from which `read_component` makes the same again.

        Args:
            unresolved: the section that the component was read from. Its interpolations, such as
                `${trainer.total_frames}`, are kept, so that they follow later changes.
        """
        config: dict[str, Any] = {TARGET: self.path}
        for name, value in self.settings.items():
            before = unresolved.get(name)
            if isinstance(value, Component):
                config[name] = value.config(before if isinstance(before, Mapping) else {})
            else:
                follows = isinstance(before, str) and _FOLLOWS.match(before)
                config[name] = before if follows else value
        return config


def read_component(
    group: str, section: Any, provided: Iterable[str] = (), kind: type | None = None
) -> Component:
    """Find the class of a section and check its settings against the class's constructor.

    Args:
        group: the name of the section, used in messages, as in `agent` or `agent.encoder`.
        section: `_target_` and the settings.
        provided: arguments that the program passes itself and that no setting may name.
        kind: the class that the target has to derive from; None for that of the config group.

    Raises:
        ConfigurationError: the class cannot be used, or a setting is wrong.
    """
    if not isinstance(section, Mapping) or section.get(TARGET) is None:
        raise ConfigurationError(f"{group}: it needs a class, {group}._target_=package.Class")
    settings = dict(section)
    path = settings.pop(TARGET)
    target = find_class(group, path, kind)
    parts = {
        name: _read_part(f"{group}.{name}", default, settings.pop(name, None), annotation)
        for name, (default, annotation) in parts_of(target).items()
    }
    checked = check_settings(target, settings, group, provided, parts)
    return Component(path, target, {**checked, **parts})


def parts_of(target: type) -> dict[str, tuple[type, type]]:
    """Return the settings of a class that are components themselves.

    Returns:
        By the name of the setting: its class unless another one is asked for, and the class that
        all of them derive from.
    """
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(target).items()
        if isinstance(parameter.default, Configurable)
    }
    hints = get_type_hints(constructor_of(target)) if defaults else {}
    return {name: (type(default), hints[name]) for name, default in defaults.items()}


def _read_part(group: str, default: type, section: Any, kind: type) -> Component:
    if section is not None and not isinstance(section, Mapping):
        raise ConfigurationError(
            f"{group}={section}: it takes settings, {group}.NAME=..., or a class of your own, "
            f"{group}._target_=package.Class"
        )
    path = f"{default.__module__}.{default.__qualname__}"
    part = read_component(group, {TARGET: path, **(section or {})}, kind=kind)
    try:
        part.build()
    except (TypeError, ValueError) as error:  # a ConfigurationError is a ValueError
        raise ConfigurationError(f"{group}: {error}") from error
    return part
