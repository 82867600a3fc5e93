"""Measure score and wall-clock time of an agent on a known task, and of Stable-Baselines3.

Every run is a command as a user would type it, in its own process with one torch thread. Its score
is the score of its closing evaluation, its time the wall clock from start to end. Two runs at a
time, one of this library and one of Stable-Baselines3, see the same load of the machine; a run that
keeps all cores busy goes alone.

    python -m benchmarks.learning agent=dqn task=cartpole seeds=3
    python -m benchmarks.learning agent=dqn task=cartpole seeds=3 peer=kept

writes docs/results/learning/dqn_cartpole.json and renders docs/results/learning.md and .png. The
second command measures this library alone, because its changes leave Stable-Baselines3 as it is.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from benchmarks.fixture import Count
from benchmarks.learning.report import HEADER, RESULTS, render, row
from benchmarks.learning.results import Result, Series, read_results, write_result
from benchmarks.learning.runs import OurJob, PeerJob
from benchmarks.learning.tasks import GATES, Gate
from benchmarks.report import Figures, machine, main, print_table, require
from torchrl_gpu.errors import ConfigurationError
from trainers.runs.folders import new_folder


def learn(
    *,
    agent: str,
    task: str,
    seeds: Count | None = None,
    peer: Literal["measured", "kept"] = "measured",
    results: Path = RESULTS,
    runs: Path = Path("runs/learning"),
) -> Figures:
    """Measure how an agent learns, write its result and render the table and picture of all.

    Args:
        agent: agent to measure: ppo, sac, ddpg, ac_iqn, dqn, iqn or rainbow.
        task: task to learn, such as cartpole; the error for an unknown task lists all tasks.
        seeds: number of seeds, starting at 0, at least 1; by default 3, or 1 for a long task.
        peer: runs of Stable-Baselines3, where the task has them: measured, or kept from the last
            result (measured).
        results: folder of the JSON files; table and picture are written beside it
            (docs/results/learning).
        runs: folder of the runs (runs/learning).

    Raises:
        ConfigurationError: the agent is not measured on this task, a required package is not
            installed, or a run failed.
    """
    require("matplotlib")
    gate = _gate(agent, task)
    kinds: dict[str, type[OurJob] | type[PeerJob]] = {"ours": OurJob}
    series: dict[str, Series] = {}
    if gate.peer is not None and peer == "measured":
        require("stable_baselines3", "sb3_contrib")
        kinds["peer"] = PeerJob
    elif gate.peer is not None:
        series["peer"] = _kept_peer(gate, results)
    started = new_folder(runs)
    print(f"{machine()}\nruns: {started}\n", flush=True)
    numbers = range(seeds or gate.task.seeds)
    jobs = {
        (side, seed): kind.of(gate, seed, started / f"{side}_{seed}")
        for seed in numbers
        for side, kind in kinds.items()
    }
    at_a_time = 1 if gate.task.alone else 2
    with ThreadPoolExecutor(at_a_time) as pool:
        # After a failed run or Ctrl-C, queued runs do not start.
        runs_of = dict(zip(jobs, pool.map(lambda job: job.run(), jobs.values()), strict=True))
    place = f"{machine()}, {at_a_time} run(s) at a time with one torch thread each"
    date = time.strftime("%Y-%m-%d")
    for side in kinds:
        first, done = jobs[side, 0], [runs_of[side, seed] for seed in numbers]
        series[side] = Series(first.algorithm, first.command, place, date, done)
    result = Result(agent, task, gate.task.measure, gate.frames, gate.target, **series)
    write_result(result, results)
    print_table(HEADER, [row(result)])
    render(results=results)
    return {
        side: {
            "scores": [run.score for run in each.runs],
            "seconds": [round(run.seconds, 1) for run in each.runs],
        }
        for side, each in series.items()
    }


def _kept_peer(gate: Gate, results: Path) -> Series:
    """Return the runs of Stable-Baselines3 in the last result of an agent on a task."""
    for result in read_results(results):
        is_same = (result.agent, result.task) == (gate.agent, gate.task.name)
        if is_same and result.frames == gate.frames and result.peer is not None:
            return result.peer
    raise ConfigurationError(
        f"peer=kept: {results} has no runs of Stable-Baselines3 for agent={gate.agent} "
        f"task={gate.task.name} with {gate.frames} frames; choose peer=measured"
    )


def _gate(agent: str, task: str) -> Gate:
    """Return the budget and target of an agent on a task."""
    for gate in GATES:
        if (gate.agent, gate.task.name) == (agent, task):
            return gate
    known = ", ".join(f"agent={gate.agent} task={gate.task.name}" for gate in GATES)
    raise ConfigurationError(f"agent={agent} task={task}: no budget; choose one of: {known}")


if __name__ == "__main__":
    main(learn)
