"""The page on runs: learning curves, statistics, settings, films and system, in one file."""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np

from torchrl_gpu.tables import counted, human_time
from trainers.comparing.document import Markup, document, folded, html_table, panels
from trainers.comparing.drawing import Curve, Interval, draw_curves, draw_intervals, percent, swatch
from trainers.comparing.groups import Group, improvements
from trainers.comparing.results import Results
from trainers.comparing.runs import FILMS, Axis, Run

_METHOD: Final = (
    "Scores are those of the closing evaluation of the best checkpoint; of the best evaluation so "
    "far for a run that has not ended. IQM is the interquartile mean over the runs; intervals are "
    "95 % percentile intervals of the stratified bootstrap over runs, 2,000 samples (Agarwal et "
    "al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021). They are "
    "too narrow for few runs: of normally distributed scores, those of 2, 3, 5 and 10 runs cover "
    "the true mean in 50, 75, 91 and 94 of 100 cases. A single run has none. The curve of a group "
    "ends with its shortest run, over time with the fastest of those that end after equal frames. "
    "Frames and seconds to a score are medians over the runs of the first evaluation that reaches "
    "it."
)
_AXES: Final[Sequence[Axis]] = ("frames", "seconds")
_UPDATES: Final = ("precision", "compile", "products")
_EMBEDDED: Final = 4 * 2**20  # bytes of all films that a page contains; others are linked
_LINES: Final = 40  # runs of a picture of one metric


def page(title: str, results: Sequence[Results], output: Path) -> str:
    """Return the text of the HTML page, which links films relative to `output`."""
    room = _EMBEDDED
    is_one = sum(len(group.runs) for each in results for group in each.groups) == 1
    parts = [] if is_one else [f'<p class="note">{_METHOD}</p>']
    for each in results:
        parts += _facts(each) if is_one else [f"<h2>{escape(each.env)}</h2>", *_scores(each)]
        if not each.is_overall:
            films, room = _films(each, output, room)
            parts += [films, *_details(each, is_one)]
    return document(title, parts)


def _facts(results: Results) -> Iterator[str]:
    """Yield the result of a single run, and its learning curve."""
    (group,) = results.groups
    (run,) = group.runs
    summary = run.summary
    state = "best so far; the run has not ended"
    if run.ended:
        state = f"of the best checkpoint: {counted(summary['episodes'], 'episode')}"
        if results.is_success:
            interval = results.range(summary["success_low"], summary["success_high"])
            state += f", 95 % interval {interval}"
    rows = [
        (results.measure, f"{results.score(run.score)} ({state})"),
        ("frames", f"{run.end[0]:,.0f} in {human_time(run.end[1])}"),
        ("system", ", ".join(f"{n} {v}" for n, v in results.system(group).items() if v != "-")),
        ("device", run.settings.get("device", "-")),
        ("updates", ", ".join(f"{n} {summary[n]}" for n in _UPDATES if n in summary)),
        ("seed", run.seed),
        ("folder", str(run.folder)),
    ]
    yield html_table(["", ""], [row for row in rows if row[1]], "left wrap")
    yield panels([_learning(results, axis) for axis in _AXES], "large")


def _scores(results: Results) -> Iterator[str]:
    """Yield the table of the groups, their curves and intervals, and the settings that differ."""
    groups = results.groups
    header, rows = results.table()
    yield html_table(["", *header], [[_named(g), *r] for g, r in zip(groups, rows, strict=True)])
    pictures = [] if results.is_overall else [_learning(results, axis) for axis in _AXES]
    if sum(len(group.runs) for group in groups) > 1:
        intervals = [
            Interval(g.name, g.interquartile_mean, *g.interval, list(g.scores), g.number)
            for g in groups
        ]
        title = f"closing {results.measure}: IQM, interval and runs"
        pictures.append(draw_intervals(intervals, title, x_format=results.tick))
    if len(groups) > 1:
        title, pairs = "probability of improvement", improvements(groups)
        pictures.append(
            draw_intervals(pairs, title, x_format=percent, x_range=(0.0, 1.0), levels=[0.5])
        )
    yield panels(pictures, "large")
    if results.is_overall:
        return
    header = ["setting", *(group.short_name for group in groups)]
    common, others = results.settings
    if common:
        yield f"<h3>Settings that differ</h3>{html_table(header, common, 'left')}"
    if others:
        title = f"{len(others)} settings that some of the groups lack"
        yield folded(title, html_table(header, others, "left"))


def _learning(results: Results, axis: Axis) -> str:
    """Return the learning curves: faint ones of the runs behind those of the groups."""
    curves = []
    runs = [run for group in results.groups for run in group.runs]
    unit, label = (1.0, "frames") if axis == "frames" else _unit_of_time(runs)
    for group in results.groups:
        mean = group.curve(axis)
        curves.append(replace(mean, x=np.divide(mean.x, unit)))
        for run in group.runs if len(group.runs) > 1 else ():
            x, score = run.curve[axis] / unit, run.curve["score"]
            curves.append(Curve(_label(run), x, score, color=group.number, faint=True))
    return draw_curves(
        curves,
        f"{results.measure} in evaluations",
        label,
        y_format=results.tick,
        y_range=(0.0, 1.0) if results.is_success else None,
        levels=[] if results.level is None else [results.level],
    )


def _unit_of_time(runs: Sequence[Run]) -> tuple[float, str]:
    """Return the seconds of a unit that suits the longest of some runs, and its name."""
    longest = max(run.curve["seconds"][-1] for run in runs)
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    return next(((unit, name) for unit, name in units if longest > 3 * unit), (1.0, "seconds"))


def _films(results: Results, output: Path, room: int) -> tuple[str, int]:
    """Return the films, that of the best run of each group, and the bytes that are left."""
    figures = []
    for group in results.groups:
        runs = sorted(group.runs, key=lambda run: -run.score)
        film = next(filter(None, (run.film() for run in runs)), None)
        if film is None:
            continue
        source = quote(os.fsencode(os.path.relpath(film, output.parent).replace(os.sep, "/")))
        if film.stat().st_size <= room:
            data = film.read_bytes()
            room -= len(data)
            source = f"data:{FILMS[film.suffix]};base64,{base64.b64encode(data).decode()}"
        shown = (
            f'<img alt="film" src="{source}">'
            if film.suffix == ".gif"
            else f'<video controls muted loop playsinline src="{source}"></video>'
        )
        figures.append(f"<figure>{shown}<figcaption>{_named(group)}</figcaption></figure>")
    return (f"<h3>Films</h3>{panels(figures)}" if figures else ""), room


def _details(results: Results, is_one: bool) -> Iterator[str]:
    """Yield the metrics of all runs, those of the system first, and settings or folders."""
    runs = [run for group in results.groups for run in group.runs]
    apart = {"frames", "seconds", f"evaluation/{runs[0].measure}"}
    names = [n for n in dict.fromkeys(n for run in runs for n in run.metrics) if n not in apart]
    system = [n for n in names if n.startswith("system/") or n == "frames_per_second"]
    if system:
        yield f"<h3>System</h3>{panels([_metric(results, name) for name in system])}"
    others = [_metric(results, name) for name in names if name not in system]
    if is_one:
        yield f"<h3>All metrics</h3>{panels(others)}"
        settings = html_table(["setting", "value"], [*runs[0].settings.items()], "left")
        yield folded("All settings", settings)
        return
    limit = f" (of {_LINES} runs at most)" if len(runs) > _LINES else ""
    yield folded(f"All metrics: {len(others)} more{limit}", panels(others))
    header = ["run", "seed", results.measure, "frames", "time"]
    rows = []
    for run in runs:
        frames, seconds = run.end
        folder = Markup(f"<code>{escape(str(run.folder))}</code>")
        score = results.score(run.score)
        rows.append((folder, run.seed, score, f"{frames:,.0f}", human_time(seconds)))
    yield folded(f"Runs: {len(runs)}", html_table(header, rows))


def _metric(results: Results, name: str) -> str:
    """Return the picture of a metric in all runs."""
    is_bytes, curves = name.endswith("_bytes"), []
    for group in results.groups:
        for run in group.runs[: max(1, _LINES // len(results.groups))]:
            column = run.metric(name)
            rows = np.isfinite(column)
            if rows.any():
                y = column[rows] / (2**30 if is_bytes else 1)
                x = run.metrics["frames"][rows]
                curves.append(Curve(_label(run), x, y, color=group.number))
    title, limits = name, None
    if name.endswith("_percent"):
        title, limits = f"{name.removesuffix('_percent')}, %", (0.0, 100.0)
    elif is_bytes or name == "frames_per_second":
        title = f"{name.removesuffix('_bytes')}, GiB" if is_bytes else name
        limits = (0.0, 1.05 * max((max(curve.y) for curve in curves), default=0.0) or 1.0)
    return draw_curves(curves, title, "frames", y_range=limits)


def _named(group: Group) -> Markup:
    return Markup(f"{swatch(group.number)}{escape(group.name)}")


def _label(run: Run) -> str:
    return f"{run.agent}, seed {run.seed}, {run.score:.4g}"
