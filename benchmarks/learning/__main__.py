"""Measure score and wall-clock time of every agent on known tasks, and of Stable-Baselines3.

Every run is a command as a user would type it, in its own process with one torch thread. Its score
is the score of its closing evaluation, its time the wall clock from start to end. Runs of this
library and of Stable-Baselines3 take turns, so that both see the same load of the machine.

    python -m benchmarks.learning agent=dqn task=cartpole seeds=3

writes docs/results/learning/dqn_cartpole.json and renders docs/results/learning.md and .png.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from benchmarks.fixture import Count, one_of
from benchmarks.learning.report import HEADER, RESULTS, render, row
from benchmarks.learning.results import Result, Run, Series, read_result, write_result
from benchmarks.learning.runs import Job, OurJob, PeerJob, RunFailedError, new_folder
from benchmarks.learning.tasks import GATES, PEERS, TASKS, Gate
from benchmarks.report import machine, print_figures, print_table, require
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.errors import ConfigurationError

Peers = Literal["true", "false", "only"]


def _named(name: str) -> str:
    """Return the name of a task, given its name or the id of its Gymnasium environment."""
    return {task.title: task.name for task in TASKS.values()}.get(name, name)


def learn(
    *,
    agent: Annotated[str, one_of("agent", PEERS)],
    task: Annotated[str, AfterValidator(_named), one_of("task", TASKS)],
    seeds: Count | None = None,
    peers: Peers = "true",
    jobs: Count = 2,
    frames: Annotated[int, Field(ge=10)] | None = None,
    results: Path | None = None,
    runs: Path = Path("runs/learning"),
) -> int:
    """Measure how agents learn, write their results and render the table and picture of all.

    Args:
        agent: agent to measure: ppo, sac, ddpg, ac_iqn, dqn, iqn, rainbow or all.
        task: task to learn: cartpole, pendulum, acrobot, lunarlander, lunarlander_continuous,
            pong, fanuc, lift_cube, reach_pixels, the id of one of these Gymnasium environments, or
            all.
        seeds: number of seeds, starting at 0, at least 1 (3; LunarLander, Pong and FANUC 1).
        peers: runs of Stable-Baselines3 on the tasks that compare with it: true, false, or only
            to run nothing else (true).
        jobs: number of parallel runs, each with one torch thread, at least 1; FANUC always runs
            alone (2).
        frames: environment steps of each run, at least 10, instead of the published budget; needs
            `results`.
        results: folder of the JSON files; table and picture are written beside it
            (docs/results/learning).
        runs: folder of the runs (runs/learning).

    Returns:
        0, or 1 if a run failed; the file of a failed pair of agent and task stays unchanged.

    Raises:
        ConfigurationError: the agent is not measured on this task, `frames` is given without
            `results`, or a required package is not installed.
    """
    require("matplotlib")
    gates = _gates(agent, task)
    if peers == "only":
        gates = [gate for gate in gates if gate.peer is not None]
        if not gates:
            raise ConfigurationError(
                "peers=only: Stable-Baselines3 runs on cartpole, pendulum and pong"
            )
    if frames is not None:
        if results is None:
            raise ConfigurationError(
                f"frames={frames}: not the published budget; name a folder for it: results=..."
            )
        gates = [replace(gate, frames=frames) for gate in gates]
    if peers != "false" and any(gate.peer for gate in gates):
        require("stable_baselines3", "sb3_contrib")
    folder = results or RESULTS
    started = new_folder(runs)
    print(f"{machine()}\nruns: {started}\n", flush=True)

    done: list[Result] = []
    failures = 0
    for alone, group in groupby(gates, key=lambda gate: gate.task.alone):
        at_a_time = 1 if alone else jobs
        described = f"{machine()}, {at_a_time} run(s) at a time with one torch thread each"
        planned = [(gate, _jobs(gate, seeds, peers, started)) for gate in group]
        with ThreadPoolExecutor(at_a_time) as pool:
            # Two agents can have the same peer, whose runs are shared.
            unique = dict.fromkeys(job for _, each in planned for job in each)
            futures = {job: pool.submit(job.run) for job in unique}
            try:
                for gate, each in planned:
                    finished = _finished(gate, {job: futures[job] for job in each})
                    failures += len(each) - len(finished)
                    if len(finished) == len(each):
                        done.append(_keep(gate, finished, described, folder))
            except BaseException:  # above all Ctrl-C: queued runs must not start
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    if done:
        print()
        print_table(HEADER, [row(result) for result in done])
        render(results=folder)
    if failures:
        print(f"{failures} run(s) failed, see above", file=sys.stderr)
    print()
    print_figures({f"{result.agent}_{result.task}": result.figures() for result in done})
    return 1 if failures else 0


def _gates(agent: str, task: str) -> list[Gate]:
    """Return the gates of an agent (or all) on a task (or all)."""
    gates = [g for g in GATES if agent in (g.agent, "all") and task in (g.task.name, "all")]
    if not gates:
        tasks = ", ".join(gate.task.name for gate in GATES if gate.agent == agent)
        raise ConfigurationError(f"task={task}: agent={agent} is measured on {tasks}")
    return gates


def _jobs(gate: Gate, seeds: int | None, peers: Peers, folder: Path) -> list[Job]:
    """Return the runs of an agent on a task, seed by seed, our runs and the peer's in turns."""
    jobs: list[Job] = []
    for seed in range(seeds or gate.task.seeds):
        if peers != "only":
            jobs.append(OurJob.of(gate, seed, folder / gate.name / f"seed_{seed}"))
        if peers != "false" and gate.peer is not None:
            name = f"sb3_{gate.peer}_{gate.task.name}_{gate.frames}"
            jobs.append(PeerJob.of(gate, seed, folder / name / f"seed_{seed}"))
    return jobs


def _finished(gate: Gate, futures: Mapping[Job, Future[Run]]) -> dict[Job, Run]:
    """Wait for runs, print the score of each, and return those that did not fail."""
    finished = {}
    for job, future in sorted(futures.items(), key=lambda item: isinstance(item[0], PeerJob)):
        whose = "SB3 " if isinstance(job, PeerJob) else ""
        name = f"{whose}{job.algorithm} {gate.task.name} seed {job.seed}"
        try:
            finished[job] = run = future.result()
        except RunFailedError as error:
            print(f"{name} FAILED: {error}\n", file=sys.stderr, flush=True)
        else:
            print(f"{name}: {run.score:.2f} in {run.seconds:.0f} s", flush=True)
    return finished


def _keep(gate: Gate, finished: Mapping[Job, Run], machine: str, folder: Path) -> Result:
    """Write the result of the runs; a series that was not run keeps its earlier values."""
    result = read_result(folder, gate.agent, gate.task.name)
    if result is None or result.frames != gate.frames:
        result = Result(gate.agent, gate.task.name, gate.task.measure, gate.frames, gate.target)
    result = replace(
        result,
        target=gate.target,
        ours=_series(OurJob, finished, machine) or result.ours,
        peer=_series(PeerJob, finished, machine) or result.peer,
    )
    write_result(result, folder)
    return result


def _series(kind: type[Job], finished: Mapping[Job, Run], machine: str) -> Series | None:
    """Return the runs of one side, if there are any."""
    jobs = [job for job in finished if isinstance(job, kind)]
    if not jobs:
        return None
    runs = [finished[job] for job in jobs]
    date = time.strftime("%Y-%m-%d")
    return Series(jobs[0].algorithm, jobs[0].command, machine, date, runs)


if __name__ == "__main__":
    sys.exit(call_with_arguments(learn))
