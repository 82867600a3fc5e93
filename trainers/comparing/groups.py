"""Groups of runs with equal settings but the seed, and their statistics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from torchrl_gpu.intervals import (
    Scores,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
)
from trainers.comparing.drawing import Curve, Interval
from trainers.comparing.runs import Axis, Run

_POINTS: Final = 150  # of the mean curve
_SHOWN: Final = 3  # settings in the name of a group
# Settings of a run alone, which change nothing that it learns or measures.
_OF_A_RUN: Final = {
    *("seed", "trainer.show_progress", "trainer.loggers"),
    *("trainer.checkpoints_kept", "trainer.save_replay"),
}
# Sections whose settings stand first in the name of a group.
_SECTIONS: Final = ("agent", "env")


@dataclass(frozen=True)
class Group:
    """Runs with equal settings but the seed, or runs of one agent in several environments.

    Attributes:
        name: agent, and the settings by which it differs from others of the same agent; behind the
            number where there are several groups.
        number: position among the groups of its environment, from 0.
        runs: its runs, at least one.
    """

    name: str
    number: int
    runs: Sequence[Run]

    @property
    def short_name(self) -> str:
        """Number, from 1, and agent."""
        return f"{self.number + 1} {self.runs[0].agent}"

    @property
    def scores(self) -> Scores:
        """Scores of the runs, `[N]`."""
        return np.array([run.score for run in self.runs])

    @property
    def strata(self) -> list[Scores]:
        """Scores of the runs in each environment, each `[N]`."""
        envs = dict.fromkeys(run.env for run in self.runs)
        return [np.array([run.score for run in self.runs if run.env == env]) for env in envs]

    @property
    def interquartile_mean(self) -> float:
        """Interquartile mean of the scores."""
        return float(interquartile_mean(self.scores))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the interquartile mean; NaN for a single run."""
        low, high = bootstrap_interval(self.strata)
        return float(low), float(high)

    @property
    def ended(self) -> int:
        """Number of runs that have ended."""
        return sum(run.ended for run in self.runs)

    def reaches(self, level: float, axis: Axis) -> tuple[float, int]:
        """Return median frames or seconds to a level, and how many runs reach it.

        The median is infinite where half of the runs do not reach the level.
        """
        reached = [run.reaches(level, axis) for run in self.runs]
        return float(np.median(reached)), int(np.isfinite(reached).sum())

    def curve(self, axis: Axis) -> Curve:
        """Return the interquartile mean and its interval over frames or seconds.

        It goes from the last first evaluation of a run to the first last one. Between its
        evaluations, the curve of a run is a straight line.
        """
        curves = [run.curve for run in self.runs]
        first = max(curve[axis][0] for curve in curves)
        last = min(curve[axis][-1] for curve in curves)
        positions = np.unique(np.concatenate([curve[axis] for curve in curves]))
        x = positions[(positions >= first) & (positions <= last)]
        if len(x) > _POINTS:
            x = np.linspace(first, last, _POINTS)
        scores = np.stack([np.interp(x, c[axis], c["score"]) for c in curves], axis=-1)
        interval = bootstrap_interval([scores])
        return Curve(self.name, x, interquartile_mean(scores), *interval, self.number)

    def value(self, name: str, summarize: Callable[[Scores], float]) -> float:
        """Return the mean over the runs of a metric, summarized over the rows; NaN without it."""
        columns = [run.metric(name) for run in self.runs]
        known = [column[np.isfinite(column)] for column in columns]
        values = [summarize(column) for column in known if len(column)]
        return float(np.mean(values)) if values else np.nan

    def setting(self, name: str) -> str:
        """Return the value of a setting, or its values, by which versions can differ."""
        return ", ".join(dict.fromkeys(run.settings.get(name, "-") for run in self.runs))


def grouped(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """Return the groups of each environment by its name, the best one first.

    Success rates and mean returns in one environment, which has learned to report a success, are
    apart.
    """
    measures = Counter(env for env, _ in {(run.env, run.measure) for run in runs})
    found: dict[str, dict[tuple, list[Run]]] = {}
    for run in runs:
        env = run.env if measures[run.env] == 1 else f"{run.env}, {run.measure}"
        settings = ((n, v) for n, v in sorted(run.settings.items()) if _distinguishes(n))
        key = (run.agent, *settings)  # a script may have trained without a record of settings
        found.setdefault(env, {}).setdefault(key, []).append(run)
    return {env: _ranked(groups.values()) for env, groups in sorted(found.items())}


def over_environments(found: Mapping[str, Sequence[Group]]) -> list[Group]:
    """Return a group for each agent, with its runs in all environments, the best one first.

    There is none unless there are several environments, which all report success rates, so that
    their scores have one scale, and in which the same agents have one group each.
    """
    agents = [sorted(group.runs[0].agent for group in groups) for groups in found.values()]
    groups = [group for each in found.values() for group in each]
    has_all = all(each == agents[0] == sorted({*each}) for each in agents)
    is_rate = all(run.measure == "success" for group in groups for run in group.runs)
    if len(found) < 2 or not has_all or not is_rate:
        return []
    runs: dict[str, list[Run]] = {}
    for group in groups:
        runs.setdefault(group.runs[0].agent, []).extend(group.runs)
    return _ranked(runs.values())


def differences(groups: Sequence[Group]) -> list[str]:
    """Return the names of the settings, and versions, that differ between groups."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.settings)
    return [
        name
        for name in names
        if name not in _OF_A_RUN and len({group.setting(name) for group in groups}) > 1
    ]


def improvements(groups: Sequence[Group]) -> list[Interval]:
    """Return the probability that runs of a group score higher than those of another one.

    It is that of every pair, or of the best group and each other one of more than five.
    """
    better = groups if len(groups) <= 5 else groups[:1]
    return [
        Interval(
            f"{one.short_name} better than {two.short_name}",
            *probability_of_improvement(one.strata, two.strata),
            color=one.number,
        )
        for position, one in enumerate(better)
        for two in groups[position + 1 :]
    ]


def _distinguishes(name: str) -> bool:
    """Return whether runs that differ in a setting are of different groups.

    The closing evaluation, `evaluation.*`, cannot change the training before it.
    """
    return name not in _OF_A_RUN and not name.startswith(("versions.", "evaluation."))


def _ranked(found: Iterable[Sequence[Run]]) -> list[Group]:
    """Return groups with numbers and names, the best one first."""
    groups = [Group(runs[0].agent, 0, runs) for runs in found]
    groups.sort(key=lambda group: -group.interquartile_mean)
    if len(groups) == 1:
        return groups
    names: dict[int, str] = {}
    for agent in {group.name for group in groups}:
        names |= _names({n: group for n, group in enumerate(groups) if group.name == agent})
    return [replace(g, number=n, name=f"{n + 1} {names[n]}") for n, g in enumerate(groups)]


def _names(groups: Mapping[int, Group]) -> dict[int, str]:
    """Return a different name for each group of one agent, by number."""
    settings = [name for name in differences([*groups.values()]) if _distinguishes(name)]
    # The length of a run before the schedules of the agent, which follow it.
    first = "trainer.total_frames"
    settings.sort(key=lambda name: (name != first, name.partition(".")[0] not in _SECTIONS))
    values = {n: {name: group.setting(name) for name in settings} for n, group in groups.items()}
    telling = {n: _telling(own, [*values.values()]) for n, own in values.items()}
    names: dict[int, str] = {}
    for n, texts in telling.items():
        # The fewest that make the name unique: if every other group has one setting that is not the
        # default, a group of defaults would otherwise name all of these settings.
        others = [each for other, each in telling.items() if other != n]
        counts = (c for c in range(_SHOWN, len(texts)) if texts[:c] not in [o[:c] for o in others])
        count = next(counts, len(texts))
        more = [f"{len(texts) - count} more"] if count < len(texts) else []
        names[n] = ", ".join([groups[n].name, *texts[:count], *more])
    return names


def _telling(own: Mapping[str, str], values: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the settings that tell a group apart from the others, the most telling one first.

    Args:
        own: settings of the group by name, those of agent and environment first.
        values: the same of all groups of its agent.
    """
    lasts = Counter(name.rpartition(".")[2] for name in own)
    others, texts = [each for each in values if each != own], []
    while others:
        differ = {name: sum(other[name] != own[name] for other in others) for name in own}
        # A setting that the group has tells more than one that it lacks.
        name = max(own, key=lambda n: (differ[n] > 0 and own[n] != "-", differ[n]))
        others = [other for other in others if other[name] == own[name]]
        last = name.rpartition(".")[2]  # enough, where no other one has the same
        short = last if lasts[last] == 1 else name
        value = cut(own[name])
        if {value} & {cut(each[name]) for each in values if each[name] != own[name]}:
            value = own[name]  # another one begins with the same characters
        texts.append(f"without {short}" if value == "-" else f"{short}={value}")
    return texts


def cut(text: str, size: int = 20) -> str:
    """Return a text, or its beginning where it is longer than a size."""
    return text if len(text) <= size else f"{text[: size - 1]}…"
