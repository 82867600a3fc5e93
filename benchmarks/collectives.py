"""Count the collectives of a training by several processes, and predict how it scales.

Every agent with its preset for fanuc trains as one of many processes, by torch's fake process
group, which sends nothing: the collectives are those of a real run, and each is recorded with its
shapes. From them follows the time that they take on GPUs, by a model like that of NCCL's tuner:

    ring: launch + 2 (n - 1) hop + 2 (n - 1) / n bytes / bandwidth
    tree: launch + 2 log2(n) hop + 2 bytes / bandwidth

of which the shorter counts. The efficiency is the share of the time in which a GPU computes. The
prediction holds for the collectives of the updates on the devices; it leaves out that the hosts ask
one another after each step whether to stop, and that the slowest process is waited for.

    python -m benchmarks.collectives
    python -m benchmarks.collectives update_ms=5
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
from pydantic import Field
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from benchmarks.fixture import CPU, kind_of, random_transitions, specs
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.distributed import DistributedProcesses
from torchrl_gpu.execution.execution import Execution
from trainers.components.choices import learning_agents
from trainers.metrics import EpisodeStatistics
from trainers.run import settings_of
from trainers.training.experience import experience_of

NUM_ENVS = 64  # of a process
# The processes agree on the size of parts after updates 1, 2, 4 and 8, and seldom later. Two
# updates, because SAC's actor learns in every second one.
UPDATES = 8
STEADY = slice(4, 6)
COUNTS = (8, 16, 256)


class Link(NamedTuple):
    """A kind of connection between neighbouring GPUs.

    The latencies are those that NCCL's tuner (`tuning.cc`) has for its protocol LL128.

    Attributes:
        bandwidth: bytes per second, in each direction.
        ring_hop: seconds of a hop in a ring.
        tree_hop: seconds of a hop in a tree.
    """

    bandwidth: float
    ring_hop: float
    tree_hop: float


LAUNCH = 14e-6  # seconds of any collective
LINKS = {
    "NVLink": Link(300e9, 1.9e-6, 1.25e-6),
    "PCIe": Link(25e9, 2.5e-6, 1.9e-6),
    "100 Gb/s": Link(12.5e9, 4.0e-6, 8.5e-6),
}


class Collective(NamedTuple):
    """A call of `torch.distributed`: its operation, and shape and dtype of each tensor."""

    operation: str
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.tensors)

    def seconds(self, count: int, link: Link) -> float:
        """Return the predicted duration between a number of GPUs."""
        ring = 2.0 * (count - 1) * (link.ring_hop + self.bytes / count / link.bandwidth)
        tree = 2.0 * math.log2(count) * link.tree_hop + 2.0 * self.bytes / link.bandwidth
        return LAUNCH + min(ring, tree)


class Recorder(TorchDispatchMode):
    """Records all calls of `torch.distributed` within its block.

    Attributes:
        collectives: the calls in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do an operation of torch."""
        if func.namespace == "c10d":
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            shapes = tuple((tuple(x.shape), x.dtype) for x in tensors)
            self.collectives.append(Collective(func.overloadpacket.__name__, shapes))
        return func(*args, **(kwargs or {}))


@contextmanager
def playing(rank: int, count: int) -> Iterator[DistributedProcesses]:
    """Play one process of many, whose tensors come back unchanged."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=rank, world_size=count, store=fake.FakeStore())
    try:
        yield DistributedProcesses(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


class Traffic(NamedTuple):
    """The collectives of a training.

    Attributes:
        begin: those before the first update of a rollout, or of a step with updates.
        updates: those of each update, from the draw of its batch to its priorities.
        row: those of a row of metrics.
    """

    begin: list[Collective]
    updates: list[list[Collective]]
    row: list[Collective]


def traffic(agent: Agent, processes: DistributedProcesses) -> Traffic:
    """Return the collectives of an agent that takes `UPDATES` gradient steps from random data.

    Args:
        agent: agent of `NUM_ENVS` environments, or of any other number.
        processes: see `playing`.
    """
    agent.join(processes)
    execution = Execution(products="torch")
    # So many frames that all updates are due after one step.
    ratio, steps = 1.0, 1
    if isinstance(agent, OffPolicyAgent):
        ratio, steps = agent.utd_ratio, agent.n_step + 1
    elif isinstance(agent, OnPolicyAgent):
        steps = agent.rollout_length
    experience = experience_of(agent, math.ceil(UPDATES / ratio), 10_000, 0, execution)
    step = random_transitions(agent.observation_spec, agent.action_spec)
    for _ in range(steps - 1):
        experience.store(step)
        list(experience.batches())
    episodes = EpisodeStatistics(agent.action_spec.shape[0], CPU, processes)
    draws: list[list[Collective]] = []
    updates: list[list[Collective]] = []
    experience.store(step)
    batches = experience.batches()
    for _ in range(UPDATES):
        with Recorder() as draw:
            batch = next(batches)
        with Recorder() as learn:
            update = execution.update(agent, batch)
            experience.update_priorities(batch, update.priorities)
        draws.append(draw.collectives)
        updates.append(learn.collectives)
    with Recorder() as row:
        episodes.update(step)
        episodes.take()
    # Each draw has its own collectives, and the first begins with others.
    begin = draws[0][: len(draws[0]) - len(draws[1])]
    draws[0] = draws[1]
    together = [draw + learn for draw, learn in zip(draws, updates, strict=True)]
    return Traffic(begin, together, row.collectives)


def preset(name: str, agent_class: type[Agent]) -> Agent:
    """Return an agent with the settings of its preset for fanuc."""
    see, act = specs(NUM_ENVS, kind=kind_of(agent_class))
    chosen = settings_of(f"agent={name}", "env=fanuc", "device=cpu")
    agent: Agent = chosen.agent.build(see, act, CPU)
    return agent


def efficiency(
    updates: Sequence[list[Collective]], count: int, link: Link, seconds: float
) -> float:
    """Return the share of the time of updates in which a GPU computes.

    Args:
        updates: collectives of each update.
        count: number of GPUs.
        link: connection between them.
        seconds: duration of an update without collectives.
    """
    waiting = statistics.mean(sum(c.seconds(count, link) for c in update) for update in updates)
    return seconds / (seconds + waiting)


def measure(*, update_ms: Annotated[float, Field(gt=0.0)] = 1.0) -> Figures:
    """Print the collectives of every agent and the efficiency that follows from them.

    Args:
        update_ms: milliseconds of an update on a GPU without collectives, for its share of the
            batch (1).
    """
    torch.set_num_threads(1)
    print_machine()
    print("collectives of each process, in the presets of fanuc\n")
    counted: dict[str, Traffic] = {}
    for name, agent_class in learning_agents().items():
        agent = preset(name, agent_class)
        with playing(1, max(COUNTS)) as processes:
            counted[name] = traffic(agent, processes)
    rows, figures = [], {}
    for name, found in counted.items():
        steady = found.updates[STEADY]
        number = statistics.mean(len(update) for update in steady)
        size = statistics.mean(sum(c.bytes for c in update) for update in steady)
        begin = sum(c.bytes for c in found.begin)
        row = sum(c.bytes for c in found.row)
        cells = [f"{number:g}", f"{size / 2**10:,.1f}", str(len(found.begin)), f"{begin:,}"]
        rows.append([name, *cells, str(len(found.row)), f"{row:,}"])
        figures[f"{name}_update_collectives"], figures[f"{name}_update_bytes"] = number, size
        figures[f"{name}_row_collectives"], figures[f"{name}_row_bytes"] = len(found.row), row
    header = ["agent", "per update", "KiB", "per rollout or step", "bytes", "per row", "bytes"]
    print_table(header, rows)
    print(f"predicted efficiency, if an update without collectives takes {update_ms:g} ms:")
    print(f"- a collective takes {LAUNCH * 1e6:g} us, and for each hop and byte:")
    for name, link in LINKS.items():
        hops = f"{link.ring_hop * 1e6:g} us in a ring, {link.tree_hop * 1e6:g} us in a tree"
        print(f"  {name}: {link.bandwidth / 1e9:g} GB/s, {hops}")
    print("- all GPUs are connected alike, compute equally fast, and do not compute meanwhile\n")
    rows = []
    for name, found in counted.items():
        cells = []
        for kind, link in LINKS.items():
            for count in COUNTS:
                share = efficiency(found.updates[STEADY], count, link, update_ms / 1e3)
                cells.append(f"{share:.0%}")
                word = "".join(filter(str.isalnum, kind.lower()))
                figures[f"{name}_{count}_{word}"] = round(share, 3)
        rows.append([name, *cells])
    print_table(["agent", *(f"{kind}, {count}" for kind in LINKS for count in COUNTS)], rows)
    return figures


if __name__ == "__main__":
    main(measure)
