"""Measure a training that collects by processes of Ray, beside one that steps its environments.

Equal trainings of SAC on fanuc take turns: with the worker processes of the environment, and with
one and two collectors of Ray on the same machine. Where all share its cores, the figures show the
cost of Ray; its gain is the cores of other machines.

    python -m benchmarks.ray_collectors
    python -m benchmarks.ray_collectors kills=20

With `kills`, one of two collectors is killed (kill -9) at random moments, again and again,
and the time until another one has replaced it and its first steps have arrived is measured.
"""

import os
import random
import signal
import statistics
import threading
import time
from typing import Annotated, Final

import torch
from pydantic import Field

from benchmarks.fixture import NEVER, Count, Training
from benchmarks.measuring import take_turns, timed
from benchmarks.report import Figures, main, print_machine, print_table
from trainers.collecting.ray_cluster import START_SECONDS, connect
from trainers.collecting.ray_environment import RayEnvironment

RANDOM_FRAMES: Final = 640  # before the first update
SETTINGS: Final = ("agent=sac", "env=fanuc", "env.num_envs=64")
MOST_COLLECTORS: Final = 2


def train(*arguments: str) -> Training:
    """Return a training that has taken its first updates."""
    settings = {"log_interval": NEVER, "evaluation_interval": NEVER}
    training = Training.of((*SETTINGS, *arguments), random_frames=RANDOM_FRAMES, **settings)
    training(2 * RANDOM_FRAMES)
    training.trainer.env.metrics()  # of the beginning
    return training


def measure_speed(rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Let the trainings take turns, and return the figures of each."""
    ways = {"worker processes": train()}
    for count in range(1, MOST_COLLECTORS + 1):
        title = f"Ray, {count} collector{'s' if count > 1 else ''}"
        ways[title] = train("collectors=ray", f"collectors.count={count}")
    sides = {title: timed(run, steps * run.trainer.num_envs) for title, run in ways.items()}
    samples = take_turns(sides, rounds)
    figures = {}
    for title, training in ways.items():
        metrics = training.trainer.env.metrics()
        figures[title] = {
            "frames/s": round(samples.rate(title), 1),
            "ratio": round(samples.ratio(title, "worker processes"), 3),
            "mean age": round(float(metrics.get("collectors/weights_age", 0)), 1),
            "max age": float(metrics.get("collectors/max_weights_age", 0)),
        }
        training.close()
    rows = [
        [title, f"{each['frames/s']:,.0f}", f"{each['ratio']:.2f} x"]
        + [f"{each[name]:,.0f}" for name in ("mean age", "max age")]
        for title, each in figures.items()
    ]
    header = ["SAC, fanuc, 64 arms", "frames/s", "to workers", "age of weights [updates]"]
    print_table([*header, "largest"], rows)
    return figures


def measure_kills(kills: int, seed: int) -> dict[str, float]:
    """Kill collectors, and return the seconds until they were replaced."""
    draws = random.Random(seed)
    training = train("collectors=ray", f"collectors.count={MOST_COLLECTORS}")
    env, trainer = training.trainer.env, training.trainer
    assert isinstance(env, RayEnvironment)
    seconds, replaced, before = [], 0.0, trainer.frames
    for _ in range(kills):
        process = draws.choice(env.members)
        pid, moment = process.place.pid, draws.uniform(0.0, 3.0)
        timer = threading.Timer(moment, os.kill, (pid, signal.SIGKILL))
        start = time.perf_counter()
        timer.start()
        while process.place.pid == pid:
            training(4 * trainer.num_envs)
        seconds.append(time.perf_counter() - start - moment)
        replaced += env.metrics()["collectors/replaced"]
    frames = trainer.frames - before
    training.close()
    figures = {
        "kills": kills,
        "replaced": replaced,
        "median seconds": round(statistics.median(seconds), 1),
        "longest seconds": round(max(seconds), 1),
        "frames": frames,
    }
    print_table(list(figures), [[f"{value:,}" for value in figures.values()]])
    within = "all" if max(seconds) < START_SECONDS and replaced == kills else "NOT all"
    print(f"{within} replaced within {START_SECONDS:.0f} s; the training ended by itself\n")
    return figures


def measure(
    *,
    rounds: Count = 9,
    steps: Count = 60,
    kills: Annotated[int, Field(ge=0)] = 0,
    seed: int = 0,
) -> Figures:
    """Measure the trainings in turns, or kill collectors.

    Args:
        rounds: number of rounds after a warm-up, at least 1 (9).
        steps: number of batched steps per turn, at least 1 (60).
        kills: number of times that a collector is killed; 0 to measure speed (0).
        seed: seed of the moments (0).
    """
    torch.set_num_threads(1)
    print_machine()
    leave = connect(None, cores=1 + MOST_COLLECTORS)  # of all trainings
    figures = measure_kills(kills, seed) if kills else measure_speed(rounds, steps)
    leave()
    return figures


if __name__ == "__main__":
    main(measure)
