"""The settings that a search tries, and the values of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchrl_gpu.arguments import Search, check_value, constructor_of, searches_of, suggest
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import Settings
from trainers.components.choices import SAVED_GROUPS
from trainers.components.component import Component
from trainers.components.sections import flat

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
        drawn = trial.suggest_float(self.name, low, high, log=log)
        rounded = float(f"{drawn:.{_DIGITS}g}")
        # The value of the command stays as it is, and the range is not left.
        return rounded if low <= rounded <= high and drawn != self.value else drawn

    def __str__(self) -> str:
        """Return the values to try in words."""
        if self.search.choices:
            return " or ".join(as_text(choice) for choice in self.search.choices)
        scale = ", log scale" if self.search.log else ""
        return f"{self.search.low:g} to {self.search.high:g}{scale}"


def as_param(value: Any) -> Any:
    """Return a value as Optuna keeps it: lists and mappings as text."""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def as_text(value: Any) -> str:
    """Return a value as it is typed."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace(", ", ",")


def space_of(
    settings: Settings,
    names: Sequence[str] | None,
    space: Mapping[str, Any],
    unused: Mapping[str, str],
) -> list[Dimension]:
    """Return the settings that a search tries; for `names` and `space`, see `Tuning`.

    Those in `unused`, see `Agent`, are left out, unless they are asked for, or the search also
    tries the setting that leaves them without effect.
    """
    space = flat(space)  # typed as {agent.gamma:[...]}, or as tune.space.agent.gamma=[...]
    known = {n: k for g in SAVED_GROUPS for n, k in _settings_of(g, getattr(settings, g))}
    for setting, name in [*(("names", n) for n in names or ()), *(("space", n) for n in space)]:
        if name not in known:
            raise ConfigurationError(f"tune.{setting}: no setting {name}{suggest(name, known)}")
    declared = [n for n, each in known.items() if each.declared and n not in settings.typed]
    dimensions = []
    for name in dict.fromkeys([*declared, *space] if names is None else names):
        value, search = known[name].value, known[name].declared
        is_number = isinstance(value, int | float)
        if name in space:
            search = _typed_search(name, known[name], space[name])
            if search is None:
                continue
            if search.low is not None and search.high is not None and is_number:
                value = min(max(value, search.low), search.high)
        elif search is None and isinstance(value, bool):
            search = Search(choices=(False, True))
        elif search is None:
            raise ConfigurationError(f"tune.names: {name} has no values to try; add tune.space=...")
        if search.choices or is_number:
            dimensions.append(Dimension(name, value, with_value(search, value)))
        elif names is not None or name in space:
            raise ConfigurationError(
                f"tune: {name}={as_text(value)} is not a number to begin at; type {name}=NUMBER too"
            )
    tried = tuple(f"{each.name}=" for each in dimensions)
    idle = {f"agent.{n}" for n, where in unused.items() if not where.startswith(tried)}
    asked = space if names is None else names
    dimensions = [each for each in dimensions if each.name not in idle or each.name in asked]
    if not dimensions:
        raise ConfigurationError("tune: there is nothing to search; see tune.names and tune.space")
    return dimensions


class _Setting(NamedTuple):
    """A setting that could be searched: its component, its value, and the search it declares."""

    component: Component
    value: Any
    declared: Search | None


def _settings_of(prefix: str, component: Component) -> Iterator[tuple[str, _Setting]]:
    """Yield the settings of a component and of its parts, by dotted name."""
    searches = searches_of(component.target)
    for name, value in component.settings.items():
        if isinstance(value, Component):
            yield from _settings_of(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", _Setting(component, value, searches.get(name))


def _typed_search(name: str, setting: _Setting, typed: Any) -> Search | None:
    """Return the search that a user has typed; None to leave the setting as it is."""
    if typed is None:
        return None
    if not isinstance(typed, list) or len(typed) < 2:
        raise ConfigurationError(f"tune.space: write {name}:[low,high], or all choices in brackets")
    group, _, last = name.rpartition(".")
    constructor = constructor_of(setting.component.target)
    prefix = f"tune.space: {group}."
    checked = [check_value(constructor, last, each, prefix) for each in typed]
    if len(typed) > 2 or not all(type(each) in (int, float) for each in typed):
        return Search(choices=tuple(checked))
    low, high = sorted(checked)
    declared = setting.declared
    log = low > 0 and (declared.log if declared and declared.low else high >= 10 * low)
    return Search(low, high, log)


def with_value(search: Search, value: Any) -> Search:
    """Return a search with numbers for its multiples, which includes the value of the command."""
    if search.choices:
        # Lists in place of tuples at any depth, as a study keeps them.
        value, *listed = json.loads(json.dumps([value, *search.choices]))
        return Search(choices=(*listed, *([] if value in listed else [value])))
    assert search.high is not None
    if search.low is None:
        low, high = value / search.high, value * search.high
        low = max(1, low) if isinstance(value, int) else low
    else:
        low, high = min(search.low, value), max(search.high, value)
    return Search(low, high, search.log and low > 0)
