"""Measure robot-steps per second of the marine environment, and the overhead of TorchRL.

The reference is the paper's NumPy environment, one sea at a time on one core: 871 active
robot-steps/s at 5 robots, 4 obstacles and random actions. Only active robots count in both cases.
Their mean number is measured over whole episodes of random actions, because an inactive robot costs
as much time as an active one.

    python -m benchmarks.marinenav
    python -m benchmarks.marinenav device=cuda sizes=[4096,65536,1048576]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field, Json
from torch import Tensor

from benchmarks.report import print_figures, print_machine, print_table
from envs.marinenav import MarineNavEnv
from envs.marinenav.simulator import SimulationState, flatten
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import resolve_device

REFERENCE = 871.0  # active robot-steps/s of the paper's environment on one core
OVERHEAD_SEAS = 1024
EPISODE_STEPS = 1001

Sizes = Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class Seas:
    """An environment with prepared random actions, and its plain tensor loop without TorchRL."""

    def __init__(self, seas: int, device: str, compile_step: bool) -> None:
        self.env = MarineNavEnv(num_envs=seas, device=device, compile_step=compile_step)
        self.seas = seas
        self._state = self.env.reset()
        self._actions = [self.env.action_spec.rand()["robots", "action"] for _ in range(8)]

    def step(self, steps: int) -> None:
        """Step the environment as a collector does."""
        for step in range(steps):
            self._state["robots", "action"] = self._actions[step % 8]
            _, self._state = self.env.step_and_maybe_reset(self._state)

    def plain(self, steps: int) -> None:
        """Step the same tensors without TorchRL."""
        advance, state = self.env.tensor_loop()
        for step in range(steps):
            state, *_ = advance(state, self._actions[step % 8].permute(2, 1, 0))

    @property
    def state(self) -> SimulationState:
        """The state of all seas."""
        return self.env.tensor_loop()[1]


def seconds_of_step(run: Callable[[int], None], steps: int, device: str) -> float:
    """Return the mean duration of a step in seconds."""
    wait(device)
    start = time.perf_counter()
    run(steps)
    wait(device)
    return (time.perf_counter() - start) / steps


def wait(device: str) -> None:
    """Wait until an accelerator has finished its queued work."""
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def size_in_bytes(tensors: dict[str, Tensor]) -> int:
    """Return the memory of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def copy_speed(device: str) -> float:
    """Return the memory bandwidth of the device in bytes read and written per second."""
    source = torch.ones(2**26, device=device)
    target = torch.empty_like(source)

    def copy(steps: int) -> None:
        for _ in range(steps):
            target.copy_(source)

    times = [seconds_of_step(copy, 1, device) for _ in range(5)]
    return 2 * source.numel() * source.element_size() / min(times)


def active_robots(device: str, compile_step: bool, seas: int = 128) -> float:
    """Return the mean number of active robots in a sea over episodes of random actions."""
    advance, state = Seas(seas, device, compile_step).env.tensor_loop()
    shape = (2, *state.now.sea.active.shape)
    active = 0.0
    for _ in range(EPISODE_STEPS):
        active += state.now.sea.active.sum().item() / seas
        state, *_ = advance(state, 2.0 * torch.rand(shape, device=device) - 1.0)
    return active / EPISODE_STEPS


def measure(
    *,
    sizes: Json[Sizes] = (1, 16, 256, 4096, 16384),
    device: str = "cpu",
    threads: Annotated[int, Field(ge=1)] = 2,
    rounds: Annotated[int, Field(ge=1)] = 5,
    seconds: Annotated[float, Field(gt=0.0)] = 1.0,
    compile_step: bool = False,
) -> int:
    """Measure each batch size and the overhead of TorchRL, and print the medians.

    Args:
        sizes: numbers of seas in the batch, each at least 1 ([1,16,256,4096,16384]).
        device: compute device: auto, cpu, cuda, ... (cpu).
        threads: number of CPU threads of PyTorch, at least 1 (2).
        rounds: number of measurements of each size, at least 1 (5).
        seconds: duration of each measurement in seconds, above 0 (1).
        compile_step: fuse the step with torch.compile (false).

    Raises:
        ConfigurationError: the device is not available.
    """
    device = str(resolve_device(device))
    torch.set_num_threads(threads)
    print_machine()

    active = active_robots(device, compile_step)
    bandwidth = copy_speed(device)
    print(f"{active:.2f} of 5 robots are active on average; {bandwidth / 1e9:.0f} GB/s copied\n")
    rows, speeds, memory = [], {}, 0.0
    for size in sizes:
        fleet = Seas(size, device, compile_step)
        fleet.step(3)  # warms up: the first steps build kernels and caches
        steps = max(3, round(seconds / seconds_of_step(fleet.step, 3, device)))
        times = [seconds_of_step(fleet.step, steps, device) for _ in range(rounds)]
        step = statistics.median(times)
        state = size_in_bytes(flatten(fleet.state))
        floor = 2 * state / bandwidth
        memory = state / size
        speeds[size] = active * size / step
        rows.append(
            [
                f"{size}",
                f"{size / step:,.0f}",
                f"{speeds[size]:,.0f}",
                f"{speeds[size] / REFERENCE:,.1f} x",
                f"{step / size * 1e6:,.2f}",
                f"{floor / size * 1e6:,.3f}",
            ]
        )
    header = ["seas", "sea-steps/s", "robot-steps/s", "of reference", "us a sea", "floor, us"]
    print_table(header, rows)
    print(f"\nstate of a sea: {memory:,.0f} bytes; the floor is reading and writing it once")

    fleet = Seas(OVERHEAD_SEAS, device, compile_step)
    fleet.step(3)
    fleet.plain(3)
    steps = max(3, round(seconds / seconds_of_step(fleet.plain, 3, device)))
    ratios = []
    for _ in range(rounds):
        plain = seconds_of_step(fleet.plain, steps, device)
        ratios.append(seconds_of_step(fleet.step, steps, device) / plain - 1.0)
    overhead = statistics.median(ratios)
    print(f"EnvBase costs {overhead:.1%} on top of the plain loop at {OVERHEAD_SEAS} seas\n")
    print_figures(
        {
            "robot_steps_per_second": {str(k): round(v, 1) for k, v in speeds.items()},
            "reference": REFERENCE,
            "overhead_1024": round(overhead, 4),
            "active_robots": round(active, 3),
            "bytes_per_sea": round(memory, 1),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(measure))
