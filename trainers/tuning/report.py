"""The report of a search: lines for the terminal, and a page, one HTML file without a network."""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from statistics import fmean

from optuna.trial import FrozenTrial, TrialState

from torchrl_gpu.tables import counted, human_time
from trainers.comparing.document import document, folded, html_table, panels
from trainers.comparing.drawing import Curve, draw_curves, short
from trainers.tuning.judgement import Judged
from trainers.tuning.space import Dimension, as_param, as_text
from trainers.tuning.study import Candidate, Study
from trainers.tuning.watch import Goal

# Color of each kind of trial, and its name.
_KINDS = {TrialState.COMPLETE: (0, "ended"), TrialState.PRUNED: (7, "pruned or cut")}


def lines_of(study: Study, best: Candidate, judged: Sequence[Judged], seconds: float) -> list[str]:
    """Return the trials, the duration of the search, and how the best settings were judged."""
    states = [trial.state for trial in study.ended()]
    pruned, failed = (states.count(state) for state in (TrialState.PRUNED, TrialState.FAIL))
    duration = human_time(seconds)
    lines = [
        f"Tuned by {counted(len(states), 'trial')}, {pruned} pruned, {failed} failed, "
        f"in {duration}.",
        f"  best         {best.text(study.goal)}",
        f"  settings     {' '.join(best.typed)}",
    ]
    for side in dict.fromkeys(each.side for each in judged):
        runs = [each for each in judged if each.side == side]
        ends = ", ".join(each.end(study.goal) for each in runs)
        scores = [each.evaluation.score for each in runs if each.evaluation]
        score = f"{fmean(scores):.3g}" if scores else "-"
        lines.append(f"  fresh seeds  {side}: {ends}; closing evaluations {score}")
    if rival := _better_rival(judged, study.goal):
        lines.append(f"  verdict      {rival} did better by fresh seeds; more trials may help")
    return lines


def _better_rival(judged: Sequence[Judged], goal: Goal) -> str | None:
    """Return the side with a better mean value than the best settings; a failure is the worst."""
    sign = 1.0 if goal.direction == "maximize" else -1.0
    values: dict[str, list[float]] = {}
    for each in judged:
        value = None if each.error else each.value
        values.setdefault(each.side, []).append(-math.inf if value is None else sign * value)
    means = {side: fmean(found) for side, found in values.items()}
    return next((side for side, mean in means.items() if mean > means["best"]), None)


def page_of(
    title: str, study: Study, best: Candidate, judged: Sequence[Judged], command: str
) -> str:
    """Return the page of a study, with the command that trains with its best settings."""
    trials, goal = study.ended(), study.goal
    importances = study.importances()
    space = sorted(study.space, key=lambda each: -importances.get(each.name, 0.0))
    runs = [
        [each.side, str(each.seed), each.end(goal), f"{each.frames:,}", str(each.evaluation or "")]
        for each in judged
    ]
    settings = [
        [
            *(each.name, as_text(best.settings[each.name]), as_text(each.value), str(each)),
            f"{importances[each.name]:.0%}" if each.name in importances else "",
        ]
        for each in space
    ]
    names = [each.name for each in study.space]
    header = ["trial", "end", goal.objective, "score", "seconds", "frames", *names]
    table = html_table(header, [_cells(trial, names) for trial in trials])
    value = escape(best.text(goal))
    return document(
        title,
        [
            f"<p>Best of {counted(len(trials), 'trial')}: <b>{value}</b>. Train with it:</p>",
            f"<p><code>{escape(command)}</code></p>",
            "<h2>Judged by fresh seeds</h2>",
            html_table(["settings", "seed", "end", "frames", "closing evaluation"], runs, "left"),
            "<h2>Best settings</h2>",
            html_table(["setting", "best", "command", "tried", "importance"], settings, "left"),
            "<h2>Trials</h2>",
            '<p class="note">Blue: ended; grey: pruned or cut, at its last evaluation; line: best '
            "so far. A trial without success has one to two times the limit.</p>",
            panels([_history(trials, study)], "large"),
            f"<h2>{escape(goal.objective)} over each setting</h2>",
            panels([_slice(each, trials, goal.objective) for each in space]),
            folded("All trials", table),
        ],
    )


def _cells(trial: FrozenTrial, names: Sequence[str]) -> list[str]:
    noted = trial.user_attrs
    value = f"{trial.values[0]:.4g}" if trial.state == TrialState.COMPLETE else ""
    numbers = [f"{noted[n]:.3g}" if n in noted else "" for n in ("score", "seconds")]
    frames = f"{noted['frames']:,}" if "frames" in noted else ""
    end = noted.get("error", trial.state.name.lower())
    params = (trial.params.get(name) for name in names)
    shown = [f"{x:.4g}" if isinstance(x, float) else as_text(x) for x in params]
    return [str(trial.number), end, value, *numbers, frames, *shown]


def _history(trials: Sequence[FrozenTrial], study: Study) -> str:
    goal = study.goal
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    better = min if goal.direction == "minimize" else max
    best = [*accumulate((_height(trial, goal.objective) for trial in ended), better)]
    line = Curve("best so far", [trial.number for trial in ended], best, color=2)
    return _picture(trials, goal.objective, lambda trial: float(trial.number), "trial", [line])


def _slice(dimension: Dimension, trials: Sequence[FrozenTrial], objective: str) -> str:
    """Return the picture of the values of the trials over one setting."""
    name, log = dimension.name, dimension.search.log
    params = [as_param(choice) for choice in dimension.search.choices]
    texts = [as_text(choice) for choice in dimension.search.choices]

    def place(trial: FrozenTrial) -> float:
        value = trial.params[name]
        if params:
            return float(params.index(value))
        return math.log10(value) if log else float(value)

    def text(x: float) -> str:
        if params:
            return texts[round(x)] if x in range(len(texts)) else ""
        return _power(x) if log else short(x)

    known = [trial for trial in trials if name in trial.params]
    return _picture(known, objective, place, name, x_format=text)


def _picture(
    trials: Sequence[FrozenTrial],
    objective: str,
    place: Callable[[FrozenTrial], float],
    x_label: str,
    lines: Sequence[Curve] = (),
    x_format: Callable[[float], str] = short,
) -> str:
    """Return a picture with a dot for each trial at its last value, high or low as it is."""
    curves = list(lines)
    for state, (color, kind) in _KINDS.items():
        found = [trial for trial in trials if trial.state == state]
        heights = [_height(trial, objective) for trial in found]
        curves.append(Curve(kind, [*map(place, found)], heights, color=color, dots=True))
    places = [x for curve in curves for x in curve.x] or [0.0]
    margin = 0.05 * (max(places) - min(places)) or 0.5
    return draw_curves(
        curves,
        objective,
        x_label,
        x_format=x_format,
        x_range=(min(places) - margin, max(places) + margin),
        y_format=short if objective == "score" else _power,
    )


def _power(exponent: float) -> str:
    return short(float(f"{10**exponent:.2g}"))


def _height(trial: FrozenTrial, objective: str) -> float:
    """Return the position of the value of a trial; a pruned one has that of its last evaluation."""
    assert trial.value is not None
    return trial.value if objective == "score" else math.log10(trial.value)
