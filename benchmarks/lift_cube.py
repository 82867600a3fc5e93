"""Measure the environment lift_cube: its overhead over Genesis, and its ways to draw images.

The overhead compares the environment, its judging and resets included, with Genesis alone, which
repeats the same steps from the same states, in turns. The images compare one call for all
environments with one environment after another, and the detailed meshes of the arm with its
collision bodies.

    python -m benchmarks.lift_cube
"""

import itertools
import operator
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from pydantic import Json
from torch import Tensor

from agents.sac import SAC
from benchmarks.fixture import Count, Sizes, random_steps
from benchmarks.measuring import Call, Samples, take_turns, timed, times
from benchmarks.report import Figures, main, print_machine, print_table
from envs.genesis import start_genesis
from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.camera import WristCamera, choose
from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.environments.specs import action_spec, observation_spec

Method = Callable[..., None]

_STEPS = 20  # of one measurement
# Cameras that every machine can draw.
_EVERYWHERE = {
    "sequential": WristCamera(renderer="sequential"),
    "batched": WristCamera(renderer="batched"),
    "batched, collision bodies": WristCamera(renderer="batched", geometry="collision"),
}


def measure_overhead(num_envs: int, device: torch.device, rounds: int) -> Samples[str]:
    """Return the environment steps per second of the environment, and of Genesis alone.

    The episodes of the environment end at different times, so that its steps include resets.
    """
    env = LiftCubeEnv(num_envs=num_envs, device=device)
    simulation, step_env = env.simulation, random_steps(env)
    begun = env.state_dict()
    begun["steps"] = torch.randint_like(begun["steps"], env.max_episode_steps)
    env.load_state_dict(begun)
    state = simulation.state_dict()
    calls: list[tuple[Method, tuple[Tensor, ...]]] = []

    def recorded(method: Method) -> Method:
        def call(*arguments: Tensor) -> None:
            calls.append((method, arguments))
            method(*arguments)

        return call

    step, place = simulation.step, simulation.place
    through = timed(step_env, _STEPS, per_unit=num_envs, device=env.device)

    def through_the_environment() -> float:
        nonlocal state
        state = simulation.state_dict()
        calls.clear()
        with (
            patch.object(simulation, "step", recorded(step)),
            patch.object(simulation, "place", recorded(place)),
        ):
            return through()

    def alone() -> float:
        after = simulation.state_dict()
        simulation.load_state_dict(state)
        seconds = 0.0
        for method, group in itertools.groupby(calls, operator.itemgetter(0)):
            arguments = [arguments for _, arguments in group]
            repeat = times(partial(next, itertools.starmap(method, arguments)))
            rate = timed(repeat, len(arguments), device=env.device)()
            if method == step:
                seconds += len(arguments) / rate
        simulation.load_state_dict(after)
        return num_envs * _STEPS / seconds

    samples = take_turns({"environment": through_the_environment, "alone": alone}, rounds)
    env.close()
    return samples


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
    parts: dict[str, Call] = {
        "physics": lambda: simulation.step(joints, opening),
        "read state": simulation.observe,
        "inverse kinematics": lambda: simulation.joints_towards(scene, scene.grip),
        "render": lambda: simulation.images(shift),
        "copy": lambda: images.to(device),
        "policy": lambda: agent.policy(root.to(device)),
    }
    with torch.no_grad():
        sides = {name: timed(times(part), 1, device=device) for name, part in parts.items()}
        samples = take_turns(sides, rounds)
    env.close()
    return {name: 1.0 / samples.rate(name) for name in parts}


def compare(
    *,
    sizes: Json[Sizes] = (1, 4, 8, 16),
    overhead_envs: Count = 64,
    device: str = "auto",
    rounds: Count = 20,
) -> Figures:
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

    speeds = measure_overhead(overhead_envs, resolved, rounds)
    alone, ours = speeds.rate("alone"), speeds.rate("environment")
    overhead = speeds.ratio("alone", "environment") - 1.0
    print_table(
        ["environments", "Genesis alone, steps/s", "environment, steps/s", "overhead"],
        [[str(overhead_envs), f"{alone:,.0f}", f"{ours:,.0f}", f"{overhead:.0%}"]],
    )

    best = choose("auto", backend)
    ways = _EVERYWHERE | {best: WristCamera(renderer=best)}
    rows: list[list[str]] = []
    samples: dict[str, dict[str, float]] = {way: {} for way in ways}
    header = ["images", "environments", "samples/s", "times sequential"]
    names: list[str] = []
    for num_envs in sizes:
        for way, camera in ways.items():
            parts = measure_parts(num_envs, camera, resolved, rounds)
            names = list(parts)
            # A sample is an environment step with its image, without the policy.
            rate = num_envs / (sum(parts.values()) - parts["policy"])
            samples[way][str(num_envs)] = round(rate, 1)
            gain = rate / samples["sequential"][str(num_envs)]
            milliseconds = (f"{1e3 * value:.1f}" for value in parts.values())
            rows.append([way, str(num_envs), f"{rate:,.0f}", f"{gain:.1f}", *milliseconds])
    print_table([*header, *(f"{name}, ms" for name in names)], rows)
    return {
        "samples_per_second": samples,
        f"overhead_{overhead_envs}": round(overhead, 3),
        "genesis_steps_per_second": round(alone),
        "environment_steps_per_second": round(ours),
    }


if __name__ == "__main__":
    main(compare)
