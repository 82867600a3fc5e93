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
from benchmarks.report import Figures, main, print_machine, print_table
from trainers.run import run
from trainers.runs.folders import new_folder

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
            *("mode=tune", "experiment=null", "device=cpu", f"seed={seed}", f"runs={folder}"),
            *("trainer.evaluation_episodes=100", f"tune.trials={max(1, round(share * trials))}"),
            *(f"tune.seconds={share * minutes * 60}", f"tune.fresh_seeds={fresh_seeds}"),
            *arguments,
        )
        print(outcome.report, flush=True)
        judged = json.loads((outcome.folder / "judged.json").read_text(encoding="utf-8"))["runs"]
        made: dict[str, dict[str, list[Any]]] = {}
        for each in judged:
            side = made.setdefault(
                each["side"], {key: [] for key in ("value", "frames", "reached")}
            )
            for key, values in side.items():
                values.append(each[key])
        for title, side in made.items():
            means = (f"{fmean(side['value']):.1f}", f"{fmean(side['frames']):,.0f}")
            rows.append([f"{name}, {title}", f"{sum(side['reached'])}/{fresh_seeds}", *means])
        best, preset = made.values()
        figures[name] = {
            **{
                title: [round(seconds, 2) for seconds in side["value"]]
                for title, side in made.items()
            },
            "reached": {title: side["reached"] for title, side in made.items()},
            "ratios": {
                f"{kind} {unit}": round(mean(best[key]) / mean(preset[key]), 3)
                for kind, mean in (("mean", fmean), ("median", median))
                for unit, key in (("seconds", "value"), ("frames", "frames"))
            },
            "minutes": round(outcome.seconds / 60, 1),
        }
    print()
    print_table(["settings", "successes", "mean seconds", "mean frames"], rows)
    return figures


if __name__ == "__main__":
    main(search)
