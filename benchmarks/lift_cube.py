"""Measure the environment lift_cube: its overhead over Genesis, and its ways to draw images.

The overhead compares the environment with Genesis alone, which repeats the same commands from the
same state, in turns. The images compare one call for all environments with one environment after
another, and the detailed meshes of the arm with its collision bodies.

    python -m benchmarks.lift_cube
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, Json
from torch import Tensor

from agents.sac import SAC
from benchmarks.report import print_figures, print_machine, print_table
from envs.genesis import start_genesis
from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.camera import WristCamera, choose
from envs.lift_cube.simulation import Simulation
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.environments.specs import action_spec, observation_spec

Sizes = Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=1)]
_STEPS = 20  # of one measurement
# Cameras that every machine can draw.
_EVERYWHERE = {
    "sequential": WristCamera(renderer="sequential"),
    "batched": WristCamera(renderer="batched"),
    "batched, collision bodies": WristCamera(renderer="batched", geometry="collision"),
}
_FOREVER = 1_000_000  # steps of an episode, so that none ends within a measurement


class Recorder:
    """Steps a simulation and keeps its commands.

    Args:
        simulation: simulation to step.

    Attributes:
        commands: arguments of all steps so far.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.commands: list[tuple[Tensor, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)

    def step(self, joints: Tensor, opening: Tensor) -> None:
        """Simulate one step of the environment."""
        self.commands.append((joints, opening))
        self._simulation.step(joints, opening)


def measure_overhead(num_envs: int, device: torch.device, rounds: int) -> tuple[float, float]:
    """Return the median seconds of a step of the environment, and of Genesis alone."""
    env = LiftCubeEnv(num_envs=num_envs, device=device, curriculum=0.0, max_episode_steps=_FOREVER)
    simulation = env.simulation
    root = env.reset()
    shape = (_STEPS, num_envs, 4)
    actions = 2.0 * torch.rand(shape, device=env.device) - 1.0
    ours, alone = [], []
    for number in range(rounds + 1):
        state = simulation.state_dict()
        recorder = Recorder(simulation)
        env.simulation = recorder  # type: ignore[assignment]
        start = time.perf_counter()
        for action in actions:
            _, root = env.step_and_maybe_reset(root.set("action", action))
        middle = time.perf_counter()
        env.simulation = simulation
        after = simulation.state_dict()
        simulation.load_state_dict(state)
        restart = time.perf_counter()
        for joints, opening in recorder.commands:
            simulation.step(joints, opening)
        end = time.perf_counter()
        simulation.load_state_dict(after)
        if number:  # the first round warms up
            ours.append((middle - start) / _STEPS)
            alone.append((end - restart) / _STEPS)
    env.close()
    return statistics.median(ours), statistics.median(alone)


def measure_parts(
    num_envs: int, camera: WristCamera, device: torch.device, rounds: int
) -> dict[str, float]:
    """Return the median seconds of each part of a step with images."""
    env = LiftCubeEnv(num_envs=num_envs, device=device, pixels=True, camera=camera, curriculum=0.0)
    simulation = env.simulation
    agent = SAC(observation_spec(env), action_spec(env), device)
    root = env.reset()
    scene = simulation.observe()
    shift = torch.zeros(num_envs, 3, device=env.device)
    images = simulation.images(shift)
    opening = torch.ones(num_envs, 1, device=env.device)
    joints = scene.joints.clone()
    with torch.no_grad():
        parts: dict[str, Callable[[], Any]] = {
            "physics": lambda: simulation.step(joints, opening),
            "read state": simulation.observe,
            "inverse kinematics": lambda: simulation.joints_towards(scene, scene.grip),
            "render": lambda: simulation.images(shift),
            "copy": lambda: images.to(device),
            "policy": lambda: agent.policy(root.to(device)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for number in range(rounds + 1):
            for name, part in parts.items():
                start = time.perf_counter()
                part()
                if number:
                    seconds[name].append(time.perf_counter() - start)
    env.close()
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(
    *,
    sizes: Json[Sizes] = (1, 4, 8, 16),
    overhead_envs: Annotated[int, Field(ge=1)] = 64,
    device: str = "auto",
    rounds: Annotated[int, Field(ge=1)] = 20,
) -> int:
    """Measure overhead and images and print the medians.

    Args:
        sizes: numbers of environments with images, each at least 1 ([1,4,8,16]).
        overhead_envs: number of environments without images, at least 1 (64).
        device: compute device of the policy: auto, cpu, cuda, ... (auto).
        rounds: number of measurements of each part, at least 1 (20).

    Raises:
        ConfigurationError: Genesis is not installed.
    """
    torch.set_num_threads(1)  # as the trainer does by default
    resolved = resolve_device(device)
    backend = start_genesis(resolved).backend.name
    print_machine()
    print(f"policy on {describe_device(resolved)}, Genesis on its backend {backend}\n")

    ours, alone = measure_overhead(overhead_envs, resolved, rounds)
    overhead = ours / alone - 1.0
    rates = [f"{overhead_envs / seconds:,.0f}" for seconds in (alone, ours)]
    print_table(
        ["environments", "Genesis alone, steps/s", "environment, steps/s", "overhead"],
        [[str(overhead_envs), *rates, f"{overhead:.0%}"]],
    )
    print()

    best = choose("auto", backend).way
    ways = _EVERYWHERE | {best: WristCamera(renderer=best)}
    rows: list[list[str]] = []
    samples: dict[str, dict[str, float]] = {way: {} for way in ways}
    header = ["images", "environments", "samples/s", "times sequential"]
    names: list[str] = []
    for num_envs in sizes:
        for way, camera in ways.items():
            parts = measure_parts(num_envs, camera, resolved, rounds)
            names = list(parts)
            # Samples as the seed counts them: environment and image, without the policy.
            rate = num_envs / (sum(parts.values()) - parts["policy"])
            samples[way][str(num_envs)] = round(rate, 1)
            gain = rate / samples["sequential"][str(num_envs)]
            milliseconds = (f"{1e3 * value:.1f}" for value in parts.values())
            rows.append([way, str(num_envs), f"{rate:,.0f}", f"{gain:.1f}", *milliseconds])
    print_table([*header, *(f"{name}, ms" for name in names)], rows)
    print()
    print_figures(
        {
            "samples_per_second": samples,
            f"overhead_{overhead_envs}": round(overhead, 3),
            "genesis_steps_per_second": round(overhead_envs / alone),
            "environment_steps_per_second": round(overhead_envs / ours),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(compare))
