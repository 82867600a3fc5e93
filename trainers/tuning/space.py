"""The settings that a search tries, and the values of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchrl_gpu.arguments import Search, check_value, constructor_of, searches_of, suggest
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import Settings
from trainers.components.choices import SAVED_GROUPS
from trainers.components.component import Component

if TYPE_CHECKING:
    from optuna import Trial

# Significant digits of the numbers that are tried.
_DIGITS = 4


@dataclass(frozen=True)
class Dimension:
    """A setting to search.

    Attributes:
        name: dotted name, as in `agent.learning_rate`.
        value: value to try first: that of the command, or the nearest one in a typed range.
        search: numbers or choices to try, the value of the command among them.
    """

    name: str
    value: Any
    search: Search

    def draw(self, trial: Trial) -> Any:
        """Return the value for a trial of Optuna."""
        low, high, log = self.search.low, self.search.high, self.search.log
        if self.search.choices:
            by_text = {as_param(choice): choice for choice in self.search.choices}
            return by_text[trial.suggest_categorical(self.name, list(by_text))]
        assert low is not None
        assert high is not None
        if isinstance(self.value, int):
            return trial.suggest_int(self.name, round(low), round(high), log=log)
        return float(f"{trial.suggest_float(self.name, low, high, log=log):.{_DIGITS}g}")

    def __str__(self) -> str:
        """Return the values to try in words."""
        if self.search.choices:
            return " or ".join(as_text(choice) for choice in self.search.choices)
        scale = ", log scale" if self.search.log else ""
        return f"{self.search.low:g} to {self.search.high:g}{scale}"


def as_param(value: Any) -> Any:
    """Return a value as Optuna keeps it: lists as text."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


def as_text(value: Any) -> str:
    """Return a value as it is typed."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace(", ", ",")


def typed_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings by dotted name as they are typed."""
    return [f"{name}={as_text(value)}" for name, value in settings.items()]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted name; an empty mapping is a leaf."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        leaves |= flat(value, f"{path}.") if value and isinstance(value, dict) else {path: value}
    return leaves


def space_of(
    settings: Settings, names: Sequence[str] | None, space: Mapping[str, Any]
) -> list[Dimension]:
    """Return the settings that a search tries.

    Args:
        settings: settings of the command.
        names: see `Tuning`.
        space: see `Tuning`.

    Raises:
        ConfigurationError: a name is no setting of agent, environment or trainer, or nothing says
            what to try of it; or there is nothing to search.
    """
    space = flat(space)  # typed as {agent.gamma:[...]}, or as tune.space.agent.gamma=[...]
    known: dict[str, tuple[Component, Any]] = {}
    declared: dict[str, Search] = {}
    for group in SAVED_GROUPS:
        _collect(group, getattr(settings, group), known, declared)
    for setting, name in [*(("names", n) for n in names or ()), *(("space", n) for n in space)]:
        if name not in known:
            raise ConfigurationError(f"tune.{setting}: no setting {name}{suggest(name, known)}")
    chosen = names
    if chosen is None:
        chosen = [*(name for name in declared if name not in settings.typed), *space]
    dimensions = []
    for name in dict.fromkeys(chosen):
        value = known[name][1]
        if name in space:
            search = _typed_search(name, *known[name], space[name], declared.get(name))
        elif isinstance(value, bool):
            search = declared.get(name, Search(choices=(False, True)))
        elif name in declared:
            search = declared[name]
        else:
            raise ConfigurationError(f"tune.names: {name} has no values to try; add tune.space=...")
        if search is not None and (search.choices or isinstance(value, int | float)):
            low, high = search.low, search.high
            if name in space and low is not None and high is not None:
                value = min(max(value, low), high)
            dimensions.append(Dimension(name, value, with_value(search, value)))
        elif names is not None or (name in space and search is not None):
            raise ConfigurationError(
                f"tune.space: {name}={as_text(value)} is no number to start at"
            )
    if not dimensions:
        raise ConfigurationError("tune: there is nothing to search; see tune.names and tune.space")
    return dimensions


def _collect(
    prefix: str,
    component: Component,
    known: dict[str, tuple[Component, Any]],
    declared: dict[str, Search],
) -> None:
    """Add the settings of a component and of its parts, by dotted name."""
    searches = searches_of(component.target)
    for name, value in component.settings.items():
        if isinstance(value, Component):
            _collect(f"{prefix}.{name}", value, known, declared)
            continue
        known[f"{prefix}.{name}"] = component, value
        if name in searches:
            declared[f"{prefix}.{name}"] = searches[name]


def _typed_search(
    name: str, component: Component, value: Any, typed: Any, declared: Search | None
) -> Search | None:
    """Return the search that a user has typed; None to leave the setting as it is."""
    if typed is None:
        return None
    if not isinstance(typed, list) or len(typed) < 2:
        raise ConfigurationError(f"tune.space: write {name}:[low,high], or all choices in brackets")
    group, _, last = name.rpartition(".")
    checked = [
        check_value(constructor_of(component.target), last, each, prefix=f"tune.space: {group}.")
        for each in typed
    ]
    is_range = len(typed) == 2 and all(type(each) in (int, float) for each in typed)
    if not is_range:
        return Search(choices=tuple(checked))
    low, high = sorted(checked)
    log = low > 0 and (declared.log if declared is not None and declared.low else high >= 10 * low)
    return Search(low, high, log)


def with_value(search: Search, value: Any) -> Search:
    """Return a search with numbers for its multiples, which includes the value of the command."""
    if search.choices:
        listed = [list(each) if isinstance(each, tuple) else each for each in search.choices]
        value = list(value) if isinstance(value, tuple) else value
        return Search(choices=(*listed, *([] if value in listed else [value])))
    assert search.high is not None
    if search.low is None:
        low, high = value / search.high, value * search.high
        low = max(1, low) if isinstance(value, int) else low
    else:
        low, high = min(search.low, value), max(search.high, value)
    return Search(low, high, search.log and low > 0)
