"""Measure whether an agent learns as well in half precision as in single precision, and how fast.

The runs differ in precision and seed alone. The precisions take turns, each run in its own process
with one torch thread. A learning curve is compared at all of its points, because the closing
evaluations of good policies hardly differ. The minutes are those of training, with its evaluations,
checkpoints and compilation.

Updates are eager in fp32 and compiled in bf16.

* `fanuc`: the points are the evaluations of the run.
* `marinenav`: every checkpoint is judged by the paper's protocol on 600 episodes that no run has
  seen, 100 at each of the six levels. The best checkpoint is that of the run's own evaluations,
  which play other episodes; the highest success on the judging episodes would flatter the agent.

    python -m benchmarks.precision_learning task=fanuc agent=ppo
    python -m benchmarks.precision_learning task=marinenav agent=ddpg seeds=[0]
"""

import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, Json

from benchmarks.fixture import CPU
from benchmarks.report import Figures, main, print_machine, print_table
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.evaluation import evaluate
from envs.marinenav.scenario import draw_scenarios
from envs.settings import Seed
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.errors import ConfigurationError
from trainers.modes.outcome import RunOutcome
from trainers.run import run
from trainers.runs.policy_files import load_checkpoint, load_policy

EPISODES: Final = 100  # of the judge, at each level
UNSEEN: Final = 1  # seed of the episodes that judge; runs draw theirs from other streams


class Comparison(NamedTuple):
    """A task to learn in two precisions.

    Attributes:
        agents: agents that learn it.
        settings: arguments of the main program that select the task and the points of the curve.
        is_judged: whether all checkpoints are judged, or the run's own evaluations are taken.
    """

    agents: tuple[str, ...]
    settings: tuple[str, ...]
    is_judged: bool = False


PRECISIONS: Final = {
    "fp32": ("precision=fp32", "compile=off"),
    "bf16": ("precision=bf16", "compile=default"),
}

COMPARISONS: Final = {
    "fanuc": Comparison(
        ("sac", "ddpg", "ac_iqn", "ppo", "dqn", "iqn", "rainbow"),
        (
            *("env=fanuc", "trainer.total_frames=50000", "trainer.evaluation_interval=12500"),
            *("trainer.evaluation_episodes=100", "evaluation.episodes=300"),
        ),
    ),
    "marinenav": Comparison(
        ("sac", "ddpg", "ac_iqn", "ppo", "rainbow"),
        ("env=marinenav", "trainer.checkpoints_kept=1000", "trainer.save_replay=false"),
        is_judged=True,
    ),
}


def learn(
    *,
    task: Literal["fanuc", "marinenav"],
    agent: Literal["sac", "ddpg", "ac_iqn", "ppo", "dqn", "iqn", "rainbow"] = "sac",
    precision: Literal["fp32", "bf16", "both"] = "both",
    seeds: Json[Annotated[Sequence[Seed], Field(min_length=1)]] = (0, 1, 2),
    runs: Path = Path("runs/precision_learning"),
) -> Figures:
    """Train in both precisions or in one, and print scores and minutes of all seeds.

    Args:
        task: task to learn: fanuc or marinenav.
        agent: agent to train: sac; on fanuc any that learns, on marinenav also ac_iqn, ddpg, ppo
            or rainbow (sac).
        precision: precision to train in: fp32, bf16 or both (both).
        seeds: seeds of the runs ([0,1,2]).
        runs: folder of the runs (runs/precision_learning).

    Raises:
        ConfigurationError: the agent is not measured on this task.
    """
    comparison = COMPARISONS[task]
    if agent not in comparison.agents:
        known = ", ".join(comparison.agents)
        raise ConfigurationError(f"agent={agent}: not measured on {task}; choose one of: {known}")
    print_machine()
    common = (f"agent={agent}", *comparison.settings, "device=cpu", "threads=1", f"runs={runs}")
    learned: dict[str, list[dict[str, float]]] = {
        name: [] for name in PRECISIONS if precision in (name, "both")
    }
    rows = []
    for seed in seeds:
        for name, figures in learned.items():
            outcome = carry_out(*common, *PRECISIONS[name], f"seed={seed}")
            found = figures_of(outcome, comparison)
            figures.append(found)
            cells = [f"{name}, seed {seed}", *(f"{value:.1f}" for value in found.values())]
            print(", ".join(cells), file=sys.stderr, flush=True)
            rows.append(cells)
    for name, figures in learned.items() if len(seeds) > 1 else ():
        columns = zip(*(each.values() for each in figures), strict=True)
        rows.append([f"{name}, mean (deviation)", *map(_spread, columns)])
    print(f"{agent}, {task}: success, %, after frames; bf16 is compiled")
    print_table(["precision", *next(iter(learned.values()))[0]], rows)
    return {f"{agent}_{task}": learned}


def carry_out(*arguments: str) -> RunOutcome:
    """Return the outcome of a run in its own process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(run, *arguments).result()


def figures_of(outcome: RunOutcome, comparison: Comparison) -> dict[str, float]:
    """Return the scores of a run by frames, that of the best checkpoint, and the minutes."""
    assert outcome.best is not None, "every training has a best checkpoint"
    checkpoints = CheckpointFolder(outcome.best.parent)
    scores = {frames: each.score for frames, each in outcome.evaluations.items()}
    best = outcome.evaluation.score
    if comparison.is_judged:
        scores = {frames: _judge(checkpoints.path(frames)) for frames in scores}
        best = _judge(outcome.best)
    figures = {f"{frames:,}": round(100.0 * score, 1) for frames, score in scores.items()}
    figures["best checkpoint"] = round(100.0 * best, 1)
    ends = {"minutes to it": outcome.best, "minutes": checkpoints.paths()[-1]}
    return figures | {
        name: round(load_checkpoint(path)["seconds"] / 60, 2) for name, path in ends.items()
    }


def _judge(checkpoint: Path) -> float:
    """Return the success of the greedy policy of a checkpoint in the unseen episodes."""
    scenarios = draw_scenarios(PAPER_STAGES, EPISODES, seed=UNSEEN)
    policy = load_policy(checkpoint).policy
    return evaluate(policy, scenarios=scenarios, device=CPU, seed=UNSEEN).overall.success.mean


def _spread(values: tuple[float, ...]) -> str:
    """Return the mean of several values, and their standard deviation."""
    return f"{statistics.fmean(values):.1f} ({statistics.stdev(values):.1f})"


if __name__ == "__main__":
    main(learn)
