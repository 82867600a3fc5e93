"""Measure success and wall-clock time of the README's training command over several seeds.

Each seed runs twice. The timed run is the command of the README as it is,
`python -m trainers.run agent=sac env=fanuc seed=...`. The table shows its success rate and the time
of the whole command, from its start to its end. Its first evaluation, after 48,000 frames, comes
after most of the learning. The curve run repeats the training of the first 60,000 frames; it
evaluates the untrained policy at 0 frames, and then every 5,000 frames. These evaluations take
time, so the table does not use the curve run. The picture shows both.

    python -m benchmarks.fanuc_learning
"""

from pathlib import Path

from benchmarks.fixture import Count
from benchmarks.learning.results import Run
from benchmarks.learning.runs import OurJob
from benchmarks.report import Figures, main, print_machine, print_table, require
from benchmarks.report import picture as picture_of
from torchrl_gpu.intervals import wilson_interval
from trainers.runs.folders import new_folder

MILESTONES = (0.90, 0.95, 0.98)
CURVE = (
    "trainer.total_frames=60000",
    "trainer.evaluate_untrained=true",
    "trainer.evaluation_interval=5000",
    "trainer.evaluation_episodes=128",
    "evaluation.episodes=64",
)


def learn(
    *,
    seeds: Count = 3,
    runs: Path = Path("runs/benchmark"),
    picture: Path = Path("docs/results/fanuc_learning.png"),
) -> Figures:
    """Train each seed, draw the learning curves, and print a table and a final JSON object.

    Args:
        seeds: number of seeds, starting at 0, at least 1 (3).
        runs: folder of the runs (runs/benchmark).
        picture: file of the learning curves (docs/results/fanuc_learning.png).

    Raises:
        ConfigurationError: matplotlib is not installed, or a run failed.
    """
    require("matplotlib")
    print_machine()
    folder = new_folder(runs)
    curves, timed = [], []
    for seed in range(seeds):
        curves.append(_train(seed, folder / f"seed_{seed}" / "curve", *CURVE))
        timed.append(_train(seed, folder / f"seed_{seed}" / "timed"))
    draw(curves, timed, picture)

    points = {success: [run.reaches(success) for run in timed] for success in MILESTONES}
    reached = {success: [p and p.seconds for p in found] for success, found in points.items()}
    print()
    print_table(
        ["seed", "success", "95 % interval", "whole command", "frames"]
        + [f"to {success:.0%}" for success in MILESTONES],
        [
            [
                str(run.seed),
                f"{run.score:.1%}",
                _interval(run),
                f"{run.seconds:.0f} s",
                f"{run.frames:,}",
                *("-" if s is None else f"{s:.0f} s" for s in seconds),
            ]
            for run, *seconds in zip(timed, *reached.values(), strict=True)
        ],
    )
    print(f"learning curves: {picture}\n")
    return {
        "success": [run.score for run in timed],
        "seconds": [round(run.seconds, 1) for run in timed],
        "episodes": [run.episodes for run in timed],
        **{f"seconds_to_{100 * success:.0f}": seconds for success, seconds in reached.items()},
    }


def _train(seed: int, home: Path, *settings: str) -> Run:
    """Carry out the command of the README with a seed and further settings."""
    command = ("-m", "trainers.run", "agent=sac", "env=fanuc", f"seed={seed}", *settings)
    run = OurJob("sac", seed, (*command, f"runs={home}"), home, threads=None).run()
    print(f"seed {seed}, {home.name} run: {run.score:.1%} in {run.seconds:.0f} s", flush=True)
    return run


def _interval(run: Run) -> str:
    """Return the 95 % confidence interval of the success rate."""
    assert run.episodes is not None
    low, high = wilson_interval(round(run.score * run.episodes), run.episodes)
    return f"{low:.1%} to {high:.1%}"


def draw(curves: list[Run], timed: list[Run], path: Path) -> None:
    """Draw success rate over frames, a line for each seed: curve runs left, timed runs right."""
    sides = {
        "agent=sac env=fanuc, from the untrained policy on": curves,
        "the whole command": timed,
    }
    with picture_of(path, panels=2) as panels:
        for panel, (title, runs) in zip(panels, sides.items(), strict=True):
            for run in runs:
                thousands = [point.frames / 1000 for point in run.curve]
                success = [100 * point.score for point in run.curve]
                panel.plot(thousands, success, marker=".", label=f"seed {run.seed}")
            panel.axhline(98, color="grey", linewidth=0.8, linestyle="--", label="98 %")
            panel.set(
                title=title,
                xlabel="environment steps, thousands",
                ylabel="targets reached within 15 mm, %",
                xlim=(0, None),
                ylim=(-2, 102),
            )
            panel.grid(alpha=0.3)
            panel.legend(loc="lower right")


if __name__ == "__main__":
    main(learn)
