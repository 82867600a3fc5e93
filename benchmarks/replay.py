"""Measure prioritized sampling beside uniform sampling, from a full replay.

Both replays store the same million observations of 64 environments with the sizes of fanuc; the
priorities come from as many updates as overwrite most of them. The new priorities of a batch and
the storing of a step of all environments are measured apart from sampling. PyTorch has one thread;
on a CPU the seconds are CPU time, which other programs on the machine do not lengthen.

    python -m benchmarks.replay
"""

import time
from functools import partial

import torch

from benchmarks.fixture import BATCH, Count, random_transitions, specs
from benchmarks.measuring import Call, Samples, take_turns, timed, times
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

WRITERS = 64  # environments that write at a time

WORDS = {
    "sample": f"sampling {BATCH} transitions",
    "extend": f"storing a step of {WRITERS} environments",
    "update": f"new priorities of {BATCH} transitions",
    "cycle": "sampling, and new priorities",
}


def fill(replay: ReplayBuffer) -> None:
    """Fill a replay with random episodes that do not end, and most of its priorities, if any."""
    transitions = random_transitions(replay.observation_spec, replay.action_spec)
    for _ in range(replay.capacity // WRITERS):
        # A step begins where the one before ended.
        transitions["next"].update(replay.observation_spec.rand())
        replay.extend(transitions)
        transitions["observation"] = transitions["next", "observation"]
    if isinstance(replay, PrioritizedReplayBuffer):
        for _ in range(replay.capacity // BATCH):
            replay.update_priorities(replay.sample(BATCH), torch.rand(BATCH, device=replay.device))


def measure_replays(
    capacity: int, rounds: int, device: torch.device, units: int = 200
) -> Samples[tuple[str, str]]:
    """Measure full replays in turns: keys are "uniform" or "prioritized", and a key of `WORDS`."""
    see, act = specs(WRITERS, kind="discrete", device=device)
    prioritized = PrioritizedReplayBuffer(capacity, see, act, device)
    replays = {"uniform": ReplayBuffer(capacity, see, act, device), "prioritized": prioritized}
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    step = random_transitions(see, act)
    priorities = torch.rand(BATCH, device=device)
    sides: dict[tuple[str, str], Call] = {}
    for name, replay in replays.items():
        fill(replay)
        sides[name, "sample"] = partial(replay.sample, BATCH)
        sides[name, "extend"] = partial(replay.extend, step)
    new = partial(prioritized.update_priorities, priorities=priorities)
    sides["prioritized", "update"] = partial(new, prioritized.sample(BATCH))
    sides["prioritized", "cycle"] = lambda: new(prioritized.sample(BATCH))
    measure = partial(timed, units=units, device=device, clock=clock)
    return take_turns({side: measure(times(call)) for side, call in sides.items()}, rounds)


def measure(*, device: str = "cpu", capacity: Count = 1_000_000, rounds: Count = 15) -> Figures:
    """Measure all sides in turns, and print the medians.

    Args:
        device: compute device: auto, cpu, cuda, ... (cpu).
        capacity: number of observations in each replay, at least 192 (1000000).
        rounds: number of rounds of 200 calls after a first one that warms up, at least 1 (15).

    Raises:
        ConfigurationError: the device is not available, or the memory is insufficient.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    resolved = resolve_device(device)
    print_machine()
    print(f"{capacity:,} observations of fanuc on {describe_device(resolved)}\n")
    samples = measure_replays(capacity, rounds, resolved)
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for work, text in WORDS.items():
        row = [text, "", "", ""]
        for column, name in enumerate(("uniform", "prioritized"), start=1):
            if (name, work) in samples.rates:
                microseconds = 1e6 / samples.rate((name, work))
                row[column] = f"{microseconds:.1f}"
                figures[f"{name}_{work}_us"] = round(microseconds, 1)
        if ("uniform", work) in samples.rates:
            ratio = samples.ratio(("uniform", work), ("prioritized", work))
            row[3] = f"{ratio:.2f}"
            figures[f"{work}_ratio"] = round(ratio, 3)
        rows.append(row)
    print_table(["us", "uniform", "prioritized", "prioritized / uniform"], rows)
    return figures


if __name__ == "__main__":
    main(measure)
