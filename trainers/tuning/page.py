"""The page of a study: one HTML file with its pictures, which needs no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate

from optuna.trial import FrozenTrial, TrialState

from trainers.comparing.document import document, folded, html_table, panels
from trainers.comparing.drawing import Curve, draw_curves, short
from trainers.tuning.space import Dimension, as_param, as_text
from trainers.tuning.study import Candidate, Study

_JUDGED = ["settings", "seed", "end", "frames", "closing evaluation"]
# Color of each kind of trial, and its name.
_KINDS = {TrialState.COMPLETE: (0, "ended"), TrialState.PRUNED: (7, "pruned or cut")}


def page_of(
    title: str,
    study: Study,
    space: Sequence[Dimension],
    best: Candidate,
    judged: Sequence[Sequence[str]],
    command: str,
) -> str:
    """Return the page of a study.

    Args:
        title: title of the page.
        study: the study.
        space: its searched settings.
        best: its best settings.
        judged: settings, seed, end, frames and closing evaluation of each training by a fresh seed.
        command: command that trains with the best settings.
    """
    trials = study.ended()
    importances = study.importances()
    ordered = sorted(space, key=lambda each: -importances.get(each.name, 0.0))
    settings = [
        [
            escape(text)
            for text in (
                each.name,
                as_text(best.settings[each.name]),
                as_text(each.value),
                str(each),
                f"{importances[each.name]:.0%}" if each.name in importances else "",
            )
        ]
        for each in ordered
    ]
    objective = study.goal.objective
    header = ["trial", "end", objective, "score", "seconds", "frames", *(d.name for d in space)]
    listed = html_table(header, [_cells(trial, space) for trial in trials])
    told = f"<b>{escape(study.goal.told(best.value))}</b>, mean of {len(best.trials)}"
    return document(
        title,
        [
            f"<p>Best of {len(trials)} trials: {told}. Train with it:</p>",
            f"<p><code>{escape(command)}</code></p>",
            "<h2>Judged by fresh seeds</h2>",
            html_table(_JUDGED, [[escape(cell) for cell in row] for row in judged], "left"),
            "<h2>Best settings</h2>",
            html_table(["setting", "best", "command", "tried", "importance"], settings, "left"),
            "<h2>Trials</h2>",
            '<p class="note">Blue: ended; grey: pruned or cut, at its last evaluation; line: best '
            "so far. A trial without success has one to two times the limit.</p>",
            panels([_history(trials, study)], "large"),
            f"<h2>{escape(objective)} over each setting</h2>",
            panels([_slice(each, trials, objective) for each in ordered]),
            folded("All trials", listed),
        ],
    )


def _cells(trial: FrozenTrial, space: Sequence[Dimension]) -> list[str]:
    noted = trial.user_attrs
    value = f"{trial.values[0]:.4g}" if trial.state == TrialState.COMPLETE else ""
    numbers = [f"{noted[n]:.3g}" if n in noted else "" for n in ("score", "seconds")]
    frames = f"{noted['frames']:,}" if "frames" in noted else ""
    end = escape(noted.get("error", trial.state.name.lower()))
    params = (trial.params.get(each.name) for each in space)
    shown = [f"{x:.4g}" if isinstance(x, float) else escape(as_text(x)) for x in params]
    return [str(trial.number), end, value, *numbers, frames, *shown]


def _history(trials: Sequence[FrozenTrial], study: Study) -> str:
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    better = min if study.goal.direction == "minimize" else max
    values = [_height(trial.values[0], study.goal.objective) for trial in ended]
    line = Curve(
        "best so far", [t.number for t in ended], list(accumulate(values, better)), color=2
    )
    return _picture(trials, study.goal.objective, lambda t: float(t.number), "trial", [line])


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
        found = [(t, y) for t in trials if t.state == state and (y := _last(t)) is not None]
        heights = [_height(y, objective) for _, y in found]
        curves.append(Curve(kind, [place(t) for t, _ in found], heights, color=color, dots=True))
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


def _height(value: float, objective: str) -> float:
    return value if objective == "score" else math.log10(value)


def _last(trial: FrozenTrial) -> float | None:
    """Return the value of a trial, that at its last evaluation if it was pruned."""
    if trial.state == TrialState.COMPLETE:
        return trial.values[0]
    last = max(trial.intermediate_values, default=None)
    return None if last is None else trial.intermediate_values[last]
