"""Measure gradient steps on one CPU thread and on several, for small and large networks.

Both numbers of threads use the same agent and the same batches and are measured in turns.

    python -m benchmarks.threads
"""

from collections.abc import Iterator

import torch
from torchrl.data import Bounded, Composite

from agents.base import Agent
from agents.dqn import DQN
from agents.iqn import IQN
from agents.sac import SAC
from benchmarks.fixture import (
    BATCH,
    Seconds,
    build_agent,
    gradient_step,
    kind_of,
    random_batch,
    specs,
)
from benchmarks.measuring import Call, Measurement, take_turns, timed, times
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.host import num_cores

WIDTHS = (128, 256, 1_024)
IMAGES = Composite(pixels=Bounded(0, 255, (1, 3, 64, 64), dtype=torch.uint8), shape=(1,))


def build_cases() -> Iterator[tuple[str, Agent]]:
    """Yield each agent with the name of its case: agents by width of two layers, then on pixels."""
    for width in WIDTHS:
        for agent_class in (SAC, DQN, IQN):
            see, act = specs(1, kind=kind_of(agent_class))
            agent = build_agent(agent_class, see, act, hidden_sizes=(width, width))
            yield f"{agent_class.__name__.lower()}_{width}", agent
    for agent_class in (SAC, DQN):
        act = specs(1, kind=kind_of(agent_class))[1]
        yield f"{agent_class.__name__.lower()}_pixels", build_agent(agent_class, IMAGES, act)


def on_threads(call: Call, threads: int) -> Measurement:
    """Return the measurement of the calls per second with a number of threads."""
    measure = timed(times(call), 1)

    def on_as_many() -> float:
        torch.set_num_threads(threads)
        return measure()

    return on_as_many


def compare(*, seconds: Seconds = 3.0) -> Figures:
    """Measure gradient steps on one thread and on one per core, and print the medians.

    Args:
        seconds: duration of the measurements of each row in seconds, above 0 (3).
    """
    several = num_cores()
    print_machine()
    print(f"{BATCH} transitions per gradient step\n")
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for name, agent in build_cases():
        step = gradient_step(agent, random_batch(agent, BATCH))
        sides = {number: on_threads(step, number) for number in (1, several)}
        samples = take_turns(sides, seconds=seconds)
        one, more = samples.rate(1), samples.rate(several)
        rows.append([name, f"{one:,.1f}", f"{more:,.1f}", f"{more / one:.2f}"])
        figures[f"{name}_1"] = round(one, 1)
        figures[f"{name}_{several}"] = round(more, 1)
    header = ["agent", "1 thread, steps/s", f"{several} threads, steps/s", "times faster"]
    print_table(header, rows)
    return figures


if __name__ == "__main__":
    main(compare)
