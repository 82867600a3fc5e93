"""Measure how many frames 20 demonstrations of a shipped policy save SAC.

The episodes are recorded first. Every seed then trains twice until an evaluation reaches 95 %: with
a share of every batch drawn from the demonstrations, and without. Both have the settings of the
preset but for more updates per frame and fewer random frames, so that the data limits the learning.
The frames of a run are those of its first evaluation with 95 %; the transitions of the
demonstrations are not among them.

    python -m benchmarks.demonstrations task=lift_cube
"""

from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from benchmarks.fixture import Count
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.datasets.dataset import open_dataset
from trainers.modes.outcome import RunOutcome
from trainers.run import run
from trainers.runs.folders import new_folder

SUCCESS = 0.95

# Frames until a run without success ends, and from one evaluation to the next.
TASKS = {"fanuc": (60_000, 2_500), "lift_cube": (150_000, 2_500)}


def learn(
    *,
    task: Literal["fanuc", "lift_cube"] = "lift_cube",
    seeds: Count = 3,
    first_seed: Annotated[int, Field(ge=0)] = 0,
    episodes: Count = 20,
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5,
    utd_ratio: Annotated[float, Field(gt=0.0)] = 1.0,
    random_frames: Count = 1_000,
    runs: Path = Path("runs/benchmark"),
) -> Figures:
    """Train each seed with and without demonstrations, and print a table and a final JSON object.

    Args:
        task: environment (lift_cube).
        seeds: number of seeds, at least 1 (3).
        first_seed: first seed (0).
        episodes: number of demonstrations (20).
        share: share of every batch that is drawn from them (0.5).
        utd_ratio: updates per frame of both runs (1).
        random_frames: random frames before the first update of both runs (1000).
        runs: folder of the runs (runs/benchmark).

    Raises:
        ConfigurationError: the extra `data` is not installed, or a run failed.
    """
    print_machine()
    folder = new_folder(runs)
    common = ("device=cpu", f"runs={folder}")
    shown = folder / "demonstrations"
    recorded = run(
        *("mode=record", f"checkpoint=pretrained:{task}/sac", f"record.path={shown}"),
        *(f"record.episodes={episodes}", *common),
    )
    transitions = sum(map(len, open_dataset(shown)))
    print(f"demonstrations: {transitions:,} transitions, {recorded.evaluation}", flush=True)
    total, interval = TASKS[task]
    settings = (
        *("agent=sac", f"env={task}", f"trainer.total_frames={total}"),
        *(f"trainer.evaluation_interval={interval}", f"trainer.stop_at_score={SUCCESS}"),
        *("trainer.save_replay=false", "trainer.show_progress=false", "evaluation.episodes=200"),
        *(f"agent.utd_ratio={utd_ratio}", f"trainer.random_frames={random_frames}"),
        *("trainer.loggers=[csv]", *common),
    )
    helped = (f"agent.demonstrations={shown}", f"agent.demonstration_share={share}")
    frames: dict[str, list[int]] = {"with": [], "without": []}
    rows = []
    for seed in range(first_seed, first_seed + seeds):
        for name in frames:
            made = run(*settings, f"seed={seed}", *(helped if name == "with" else ()))
            frames[name].append(_frames_to_success(made))
            rows.append(
                [str(seed), name, f"{frames[name][-1]:,}", f"{made.evaluation.success:.1%}"]
            )
            print(f"seed {seed}, {name} demonstrations: {frames[name][-1]:,} frames", flush=True)
    print()
    print_table(["seed", "demonstrations", f"frames to {SUCCESS:.0%}", "success after"], rows)
    ratio = median(frames["with"]) / median(frames["without"])
    print(f"\nmedian frames with demonstrations: {ratio:.2f} of those without\n")
    return {**frames, "ratio": ratio, "transitions": transitions}


def _frames_to_success(made: RunOutcome) -> int:
    """Return the frames of the first evaluation with success, or all frames without one."""
    scores = {frames: evaluation.score for frames, evaluation in made.evaluations.items()}
    return next((f for f, score in scores.items() if score >= SUCCESS), max(scores))


if __name__ == "__main__":
    main(learn)
