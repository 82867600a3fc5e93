"""Measure this library beside every library that a user would pick instead.

Beside it: Stable-Baselines3 with sb3-contrib, SBX, skrl, rsl_rl, TorchRL's own losses and
replay, and plain PyTorch. Each library runs in a child process with one thread, and the rates are
per second of its CPU time, which other programs do not lengthen. This library is measured as it
runs by default: short runs eagerly in float32, long ones compiled, and in bfloat16 where the
processor has instructions for it; plain PyTorch in both ways too. The sides of a job take turns,
round by round, and the figures are medians. A ratio is the median over the rounds of the ratio
within a round. Compiling takes up to a minute for each agent.

* `updates`: one gradient step with 256 transitions, two hidden layers of 256, and the observations
  and actions of fanuc: 36 numbers; 6 dimensions, or 25 discrete actions. It runs the library's own
  code for training. Each step includes drawing its batch from a replay of 20,480 transitions; for
  PPO the advantages of a rollout of 2,048 steps, divided over its 80 minibatches. DQN is not
  double; its target network and that of IQN and QR-DQN are copied every 10,000 updates. SBX is
  measured one update a call, as at one update per frame, and 10 a call, compiled as one loop.
  IQN (8 quantiles, and 8 for the target) stands beside QR-DQN, another algorithm for quantiles:
  with its default of 200 and with 8. IQN evaluates its network once for each quantile, QR-DQN once
  for all. DQN minimizes the Huber loss and clips the gradient; SBX's and skrl's have no option to
  clip, and skrl's minimizes squared errors. skrl's SAC has a standard deviation that does not
  depend on the observation, and no correction of its log-probability for tanh.
* `training`: frames/s with everything included. SAC on Pendulum-v1 with one update per frame; PPO
  on CartPole-v1 with 8 environments, rollouts of 32 steps and 20 epochs of one minibatch.
* `seas`: PPO on 1,024 seas of marinenav with one vessel each; rollouts of 24 steps, 5 epochs of 4
  minibatches. The other libraries step the same environment through an adapter.

    python -m benchmarks.peers work=updates
    python -m benchmarks.peers picture=docs/results/peers.png
"""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal

import torch

from benchmarks.fixture import Count
from benchmarks.measuring import take_turns
from benchmarks.peers.jobs import WORKS, Job, Side
from benchmarks.peers.libraries import LIBRARIES, builders_of
from benchmarks.peers.processes import Worker
from benchmarks.peers.report import Result, draw, print_work
from benchmarks.report import Figures, main, print_machine, require


def compare(
    *,
    work: Literal["updates", "training", "seas", "all"] = "all",
    rounds: Count = 5,
    picture: Path | None = None,
) -> Figures:
    """Measure all sides in turns, round by round, and print medians.

    Args:
        work: work to measure: updates, training, seas or all (all).
        rounds: number of rounds after a first one that warms up, at least 1 (5).
        picture: PNG file for a picture of all rates; none without it.
    """
    if picture is not None:
        require("matplotlib")
    torch.set_num_threads(1)  # as in the child processes
    print_machine()
    libraries: list[str] = []
    for name, library in LIBRARIES.items():
        if library.is_installed:
            libraries.append(name)
        else:
            print(f"{library.title} is left out: pip install {library.install}\n")
    results = []
    with ExitStack() as opened:
        workers: dict[str, Worker] = {}
        for name in WORKS if work == "all" else (work,):
            done = []
            for job in WORKS[name]:
                turns = {}
                for side in sides_of(job, libraries):
                    if side.library not in workers:
                        workers[side.library] = opened.enter_context(closing(Worker(side.library)))
                    worker = workers[side.library]
                    turns[side] = worker.measurement(job.name, side.variant, job.units)
                # The round that warms up builds and compiles.
                done.append(Result(job, take_turns(turns, rounds)))
            print_work(done)
            results += done
    if picture is not None:
        draw(results, picture)
    return {
        result.job.name: {str(side): result.samples.rates[side] for side in result.sides}
        for result in results
    }


def sides_of(job: Job, libraries: list[str]) -> list[Side]:
    """Return the sides that can do a job."""
    return [
        Side(name, variant) for name in libraries for variant in builders_of(name).get(job.name, {})
    ]


if __name__ == "__main__":
    main(compare)
