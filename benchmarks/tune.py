"""Search settings of an agent from its bare defaults, and judge the best beside the shipped preset.

Each task is one command of the main program, `mode=tune ... experiment=null`: the search starts
from the defaults of the constructors and never sees the preset. Afterwards both train by the same
fresh seeds, in turns, until an evaluation on the episodes of selection reaches the success. Seconds
are those of training, without the evaluations; a training without success counts one to two times
the limit. The ratios are those of the best settings to the preset, of means and of medians.

    python -m benchmarks.tune

The search for fanuc takes `minutes` at most, and that for cartpole a quarter of it. Each of the
2 * `fresh_seeds` trainings that judge a task takes as long as a trial at most, minutes / trials,
and up to 15 evaluations; it ends at the success.
"""

import json
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Literal

from pydantic import Field

from benchmarks.fixture import Count
from benchmarks.learning.runs import new_folder
from benchmarks.report import Figures, main, print_machine, print_table
from trainers.run import run

# Arguments of each task, and its share of the trials and minutes.
TASKS = {
    "fanuc": (("agent=sac", "env=fanuc"), 1.0),
    "cartpole": (("agent=dqn", "env=gym", "env.name=CartPole-v1", "tune.success=475"), 0.25),
}


def search(
    *,
    task: Literal["all", "fanuc", "cartpole"] = "all",
    trials: Count = 40,
    minutes: Annotated[float, Field(gt=0.0)] = 34.0,
    fresh_seeds: Count = 5,
    seed: Annotated[int, Field(ge=0)] = 0,
    runs: Path = Path("runs/benchmark"),
) -> Figures:
    """Tune each task, and print a table and a final JSON object.

    Args:
        task: fanuc, cartpole, or all for both (all).
        trials: trials of the search for fanuc; a quarter of it for cartpole (40).
        minutes: maximum minutes of the search for fanuc; a quarter of it for cartpole (34).
        fresh_seeds: number of seeds of the judgement (5).
        seed: seed of the search (0).
        runs: folder of the runs (runs/benchmark).

    Raises:
        ConfigurationError: Optuna is not installed, or no trial has ended.
    """
    print_machine()
    folder = new_folder(runs)
    figures: dict[str, Any] = {}
    rows = []
    for name in TASKS if task == "all" else [task]:
        arguments, share = TASKS[name]
        outcome = run(
            *("mode=tune", "experiment=null", "device=cpu", f"seed={seed}"),
            *("trainer.evaluation_episodes=100", *arguments),
            *(
                f"tune.trials={max(1, round(share * trials))}",
                f"tune.seconds={share * minutes * 60}",
            ),
            *(f"tune.fresh_seeds={fresh_seeds}", f"runs={folder}"),
        )
        print(outcome.report, flush=True)
        judged = json.loads((outcome.folder / "judged.json").read_text(encoding="utf-8"))["runs"]
        sides: dict[str, list[dict[str, Any]]] = {}
        for each in judged:
            sides.setdefault(each["side"], []).append(each)
        for side, made in sides.items():
            seconds = [each["value"] for each in made]
            rows.append(
                [
                    f"{name}, {side}",
                    ", ".join(_reached(each) for each in made),
                    f"{fmean(seconds):.1f} s",
                    f"{fmean(each['frames'] for each in made):,.0f}",
                    f"{fmean(_score(each) for each in made):.3g}",
                ]
            )
        best, other = sides.values()
        ratios = {
            f"{kind} {unit}": round(mean(_of(best, key)) / mean(_of(other, key)), 3)
            for kind, mean in (("mean", fmean), ("median", median))
            for unit, key in (("seconds", "value"), ("frames", "frames"))
        }
        figures[name] = {
            **{
                side: [round(seconds, 2) for seconds in _of(made, "value")]
                for side, made in sides.items()
            },
            "reached": {side: [each["reached"] for each in made] for side, made in sides.items()},
            "ratios": ratios,
            "minutes": round(outcome.seconds / 60, 1),
        }
    print()
    header = ["settings", "seconds of training to the success", "mean", "frames", "closing score"]
    print_table(header, rows)
    return figures


def _of(made: list[dict[str, Any]], name: str) -> list[float]:
    return [each[name] for each in made]


def _reached(made: dict[str, Any]) -> str:
    return f"{made['seconds']:.1f}" if made["reached"] else f"not in {made['seconds']:.1f}"


def _score(made: dict[str, Any]) -> float:
    """Return the score of the closing evaluation."""
    evaluation = made["evaluation"]
    success: float | None = evaluation["success"]
    mean_return: float = evaluation["mean_return"]
    return mean_return if success is None else success


if __name__ == "__main__":
    main(search)
