"""Render the files of the learning benchmark as a table and a picture.

    python -m benchmarks.learning.report

writes `docs/results/learning.md` and `docs/results/learning.png` from `docs/results/learning/`, and
in that folder the picture of each task, and of `marinenav` from
`docs/results/marinenav_learning.txt`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.learning.results import Point, Result, Run, Series, read_results
from benchmarks.learning.tasks import GATES, TASKS, Task
from benchmarks.report import Figures, main, picture, require
from torchrl_gpu.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path("docs/results/learning")
_COLORS = {agent: f"C{index}" for index, agent in enumerate(dict.fromkeys(g.agent for g in GATES))}

HEADER = (
    *("agent", "task", "frames", "score", "each seed", "target", "reached", "seconds"),
    *("SB3", "SB3 score", "SB3 each seed", "SB3 seconds"),
)


def render(*, results: Path = RESULTS) -> Figures:
    """Render the table and the picture of all results beside their folder, pictures of each in it.

    Args:
        results: folder of the JSON files (docs/results/learning).

    Raises:
        ConfigurationError: the folder holds no results, a file in it is not a result, or matplotlib
            is not installed.
    """
    require("matplotlib")
    found = read_results(results)
    if not found:
        raise ConfigurationError(f"{results} holds no results: python -m benchmarks.learning ...")
    table, curves = results.with_suffix(".md"), results.with_suffix(".png")
    draw(found, curves)
    for task in dict.fromkeys(result.task for result in found):
        draw([result for result in found if result.task == task], results / f"{task}.png")
    seas = results.with_name("marinenav_learning.txt")
    if seas.is_file():
        draw(read_seas(seas), results / "marinenav.png")
    table.write_text(markdown(found, curves), encoding="utf-8")
    return {"table": str(table), "curves": str(curves)}


def read_seas(path: Path) -> list[Result]:
    """Return the runs in fp32 of an output of `benchmarks.precision_learning task=marinenav`.

    Each of its lines that is a JSON object has the success in percent by number of frames.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("{"):
            continue
        for name, by_precision in json.loads(line).items():
            for run in by_precision.get("fp32", ()):
                curve = [
                    Point(int(frames.replace(",", "")), 0.0, score / 100)
                    for frames, score in run.items()
                    if frames[0].isdigit()
                ]
                own = runs[name.removesuffix("_marinenav")]
                score, seconds = run["best checkpoint"] / 100, 60 * run["minutes"]
                own.append(Run(len(own), score, curve[-1].frames, seconds, curve))
    return [
        Result(agent, "marinenav", "success", own[0].frames, None, Series(agent, "", "", "", own))
        for agent, own in runs.items()
    ]


def row(result: Result) -> list[str]:
    """Return the table row of a result, one cell for each column of `HEADER`."""
    ours, peer, target = result.ours, result.peer, result.target
    beside = ["-"] * 4
    if peer is not None:
        beside = [peer.algorithm, *_scores(result, peer), f"{peer.seconds:.0f}"]
    return [
        result.agent,
        TASKS[result.task].title,
        f"{result.frames:,}",
        *_scores(result, ours),
        "-" if target is None else _score(result, target),
        "-" if target is None else "yes" if ours.score >= target else "no",
        f"{ours.seconds:.0f}",
        *beside,
    ]


def _scores(result: Result, series: Series) -> tuple[str, str]:
    """Return the mean score and the scores of all seeds."""
    each = ", ".join(_score(result, run.score) for run in series.runs)
    return _score(result, series.score), each


def _score(result: Result, score: float) -> str:
    return f"{score:.1%}" if result.measure == "success" else f"{score:.1f}"


def markdown(results: Sequence[Result], curves: Path) -> str:
    """Return the page: method, table, picture, machines and commands."""
    series = [side for result in results for side in (result.ours, result.peer) if side]
    machines = dict.fromkeys(f"{s.machine} ({s.date})" for s in series)
    exceptions = ", ".join(
        f"{task.title} {task.closing_episodes}"
        for task in TASKS.values()
        if task.closing_episodes != Task.closing_episodes
    )
    lines = [
        "# Learning curves, compared with Stable-Baselines3",
        "",
        "Written by `python -m benchmarks.learning.report` from the files in"
        f" [{curves.stem}/]({curves.stem}/).",
        "",
        "Score: mean return (fanuc, lift_cube: success rate) over 100 deterministic episodes of"
        f" the best policy ({exceptions}), selected by the evaluations during training; averaged"
        " over the seeds."
        " Seconds: wall clock of the whole command, including startup and all evaluations; averaged"
        " over the seeds. SB3: Stable-Baselines3 with the tuned settings of RL Zoo (ALE/Pong-v5:"
        " with those of this library's DQN), the same budget and the same selection. Networks and"
        " numbers of updates differ between the two, and other programs shared the cores during"
        " many of these runs: the seconds do not compare the libraries;"
        " `python -m benchmarks.peers` does.",
        "",
        _markdown_row(HEADER),
        _markdown_row(["---"] * len(HEADER)),
        *(_markdown_row(row(result)) for result in results),
        "",
        "![Learning curves: mean, lowest and highest score of the seeds; dotted: targets]"
        f"({curves.name})",
        "",
        "Measured on:",
        "",
        *(f"- {machine}" for machine in machines),
        "",
        "Commands for the first seed:",
        "",
        "```",
        *dict.fromkeys(s.command for s in series),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw a panel for each task: score over frames, one line per agent, dashed for SB3.

    Dotted lines are targets.
    """
    tasks = list(dict.fromkeys(result.task for result in results))
    with picture(path, len(tasks)) as panels:
        for task, panel in zip(tasks, panels, strict=True):
            _draw_task(panel, [result for result in results if result.task == task])


def _draw_task(panel: Axes, results: Sequence[Result]) -> None:
    peers: dict[tuple[str, int], str] = {}  # color of each; several agents can share one
    for result in results:
        color = _COLORS[result.agent]
        _draw_series(panel, result.ours, result.agent, color, "-")
        if result.peer is not None and (result.peer.algorithm, result.frames) not in peers:
            name = result.peer.algorithm
            same = [color for (other, _), color in peers.items() if other == name]
            peers[name, result.frames] = color = (*same, color)[0]
            _draw_series(panel, result.peer, "" if same else f"SB3 {name}", color, "--")
    for target in {result.target for result in results if result.target is not None}:
        panel.axhline(target, color="grey", linewidth=0.8, linestyle=":")
    panel.set(
        title=TASKS[task].title if (task := results[0].task) in TASKS else task,
        xlabel="environment steps, thousands",
        ylabel="success" if results[0].measure == "success" else "mean return",
        xlim=(0, None),
    )
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")


def _draw_series(panel: Axes, series: Series, label: str, color: str, style: str) -> None:
    # Each evaluation in turn, in all runs.
    evaluations = list(zip(*(run.curve for run in series.runs), strict=False))
    thousands = [points[0].frames / 1000 for points in evaluations]
    scores = [[point.score for point in points] for points in evaluations]
    means = [sum(s) / len(s) for s in scores]
    panel.plot(thousands, means, style, color=color, label=label, linewidth=1.5)
    if len(series.runs) > 1:
        lows, highs = [min(s) for s in scores], [max(s) for s in scores]
        panel.fill_between(thousands, lows, highs, color=color, alpha=0.12, linewidth=0)


if __name__ == "__main__":
    main(render)
