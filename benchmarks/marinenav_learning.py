"""Measure minutes of training on marinenav until the policy succeeds, eager and compiled in bf16.

Both executions train with the preset of the agent and one torch thread, each run in its own
process. Every checkpoint is judged by the paper's protocol on 600 episodes that no run has seen,
100 at each of the six levels. The minutes are those of training, with its own evaluations and
checkpoints, from the start to the checkpoint; compilation counts.

The run keeps the checkpoint that is best by its own evaluations, which play other episodes. The
highest success of all checkpoints on the judging episodes would flatter the agent.

    python -m benchmarks.marinenav_learning
    python -m benchmarks.marinenav_learning agent=sac seeds=3
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Literal

from benchmarks.fixture import CPU, Count
from benchmarks.learning.results import Point, first_reaching
from benchmarks.learning.runs import OurJob, new_folder
from benchmarks.report import print_figures, print_machine, print_table
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.evaluation import evaluate
from envs.marinenav.scenario import draw_scenarios
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.commands import call_with_arguments
from trainers.runs.layout import load_checkpoint
from trainers.runs.policy_files import load_policy

AGENTS: Final = ("ac_iqn", "sac", "ddpg")
EXECUTIONS: Final = {"fp32": (), "bf16 compiled": ("precision=bf16", "compile=default")}
MILESTONES: Final = (0.90, 0.95)
EPISODES: Final = 100  # at each level
UNSEEN: Final = 1  # seed of the episodes that judge; runs draw theirs from other streams


def learn(
    *,
    agent: Literal["ac_iqn", "sac", "ddpg", "all"] = "all",
    execution: Literal["fp32", "bf16 compiled", "all"] = "all",
    seeds: Count = 1,
    runs: Path = Path("runs/benchmark"),
) -> int:
    """Train agents in both executions, judge all checkpoints, and print minutes and success.

    Args:
        agent: agent to train: ac_iqn, sac, ddpg or all (all).
        execution: execution to train in: fp32, bf16 compiled or all (all).
        seeds: number of seeds, starting at 0, at least 1 (1).
        runs: folder of the runs (runs/benchmark).

    Raises:
        ConfigurationError: a run failed.
    """
    print_machine()
    folder = new_folder(runs, "marinenav_")
    cases = [
        (name, mode, seed)
        for name in (AGENTS if agent == "all" else (agent,))
        for mode in (EXECUTIONS if execution == "all" else (execution,))
        for seed in range(seeds)
    ]
    rows, figures = [], []
    for name, mode, seed in cases:
        home = folder / f"{name}_{mode.replace(' ', '_')}_{seed}"
        points, kept = _train(name, seed, home, EXECUTIONS[mode])
        reached = [first_reaching(milestone, points) for milestone in MILESTONES]
        row = [f"{name}, {mode}, seed {seed}"]
        row += ["-" if point is None else f"{point.seconds / 60:.1f}" for point in reached]
        for point in (kept, points[-1]):
            row += [f"{point.seconds / 60:.1f}", f"{point.score:.3f}"]
        rows.append(row)
        figures.append(
            {
                "agent": name,
                "execution": mode,
                "seed": seed,
                "kept": kept.frames,
                "frames": [point.frames for point in points],
                "minutes": [round(point.seconds / 60, 2) for point in points],
                "success": [round(point.score, 4) for point in points],
            }
        )
        print(f"{row[0]}: {kept.score:.1%} after {kept.seconds / 60:.1f} min", flush=True)
    milestones = [f"min to {milestone:.0%}" for milestone in MILESTONES]
    print()
    print_table(["run", *milestones, "min to kept", "kept", "min to last", "last"], rows)
    print(f"success of checkpoints over {6 * EPISODES} unseen episodes, {EPISODES} per level\n")
    print_figures({"runs": figures})
    return 0


def _train(
    agent: str, seed: int, home: Path, settings: tuple[str, ...]
) -> tuple[list[Point], Point]:
    """Train an agent with its preset, and judge all checkpoints in order, and the kept one."""
    arguments = (
        *("-m", "trainers.run", f"agent={agent}", "env=marinenav", f"seed={seed}"),
        *("device=cpu", "threads=1", "trainer.checkpoints_kept=1000", "trainer.save_replay=false"),
        *settings,
        f"runs={home}",
    )
    OurJob(agent, seed, arguments, home).run()
    (folder,) = home.rglob("checkpoints")
    checkpoints = CheckpointFolder(folder)
    points = {checkpoint: _judge(checkpoint) for checkpoint in checkpoints.paths()}
    best = checkpoints.best()
    assert best is not None, "every run ends with an evaluation"
    return list(points.values()), points[best]


def _judge(checkpoint: Path) -> Point:
    """Play the unseen episodes with the greedy policy of a checkpoint."""
    policy = load_policy(checkpoint).policy
    state = load_checkpoint(checkpoint)
    scenarios = draw_scenarios(PAPER_STAGES, EPISODES, seed=UNSEEN)
    found = evaluate(policy, scenarios=scenarios, device=CPU, seed=UNSEEN)
    return Point(state["frames"], state["seconds"], found.overall.success.mean)


if __name__ == "__main__":
    sys.exit(call_with_arguments(learn))
