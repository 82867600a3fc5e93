"""Measure robot-steps per second of the marine environment, and the overhead of TorchRL.

The reference is the paper's NumPy environment (Multi_Robot_Distributional_RL_Navigation), one sea
at a time on one core of another machine: 871 active robot-steps/s at 5 robots, 4 obstacles and
random actions (413 environment steps/s). It is not a package, and its source is not part of this
repository. Only active robots count in both cases. Their mean number is measured over whole
episodes of random actions, because an inactive robot costs as much time as an active one.

    python -m benchmarks.marinenav
    python -m benchmarks.marinenav device=cuda sizes=[4096,65536,1048576]
"""

from typing import Any, Final

import torch
from pydantic import Json

from benchmarks.fixture import Count, Seconds, Sizes, random_steps
from benchmarks.measuring import Run, take_turns, timed
from benchmarks.report import Figures, main, print_machine, print_table
from envs.marinenav import MarineNavEnv
from envs.marinenav.curriculum import Difficulty, Stage
from envs.marinenav.env import MAX_STEPS as EPISODE_STEPS
from envs.marinenav.noise import make_noise
from envs.marinenav.placement import Size
from envs.marinenav.simulator import Simulator
from envs.streams import seed_streams
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.execution.graphs import EAGER_CALLS

REFERENCE = 871.0  # active robot-steps/s of the paper's environment, see above
OVERHEAD_SEAS, ACTIVE_SEAS = 1024, 128

# Settings of the ways to step.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "eager": {"graphs": "off", "compile_step": False},
    "captured": {"graphs": "on", "compile_step": False},
    "compiled": {"graphs": "off", "compile_step": True},
}


def plain_steps(seas: int, device: torch.device) -> Run:
    """Return a run of eager steps and resets of the same tensors without TorchRL."""
    robots, dtype = 5, torch.float32
    difficulty = Difficulty([Stage(0, robots, 4, 40.0)], 0, dtype, device)
    noise = make_noise(device, dtype)
    simulator = Simulator(Size(robots, 0, 4), difficulty, noise, EPISODE_STEPS)
    frames = torch.zeros((), dtype=torch.int64, device=device)
    first = simulator.begin(simulator.blank(seed_streams(0, seas, device), frames))
    actions = 2.0 * torch.rand(8, 2, robots, seas, device=device) - 1.0

    def run(steps: int) -> None:
        state = first
        for step in range(steps):
            state, transition = simulator.step(state, actions[step % len(actions)])
            is_over = transition.is_late | ~transition.now.sea.active.any(0)
            state = simulator.renew(state, is_over)

    return run


def steps_within(run: Run, seconds: float, device: torch.device) -> int:
    """Return the number of steps that take a number of seconds, at least 3, after a warm-up."""
    run(EAGER_CALLS + 1)  # the first steps build kernels and caches, or capture
    return max(3, round(seconds * timed(run, 3, device=device)()))


def active_robots(env: MarineNavEnv) -> float:
    """Return the mean number of active robots in a sea over episodes of random actions."""
    root, active = env.reset(), 0.0
    for _ in range(EPISODE_STEPS):
        active += env.sea.active.sum().item() / env.num_envs
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    return active / EPISODE_STEPS


def measure(
    *,
    sizes: Json[Sizes] = (1, 16, 256, 4096, 16384),
    device: str = "cpu",
    rounds: Count = 5,
    seconds: Seconds = 1.0,
) -> Figures:
    """Measure each batch size and the overhead of TorchRL, and print the medians.

    Steps run eagerly; captured on a device with graphs; and compiled on one where long runs are.

    Args:
        sizes: numbers of seas in the batch, each at least 1 ([1,16,256,4096,16384]).
        device: compute device: auto, cpu, cuda, ... (cpu).
        rounds: number of measurements of each size, at least 1 (5).
        seconds: duration of each measurement in seconds, above 0 (1).

    Raises:
        ConfigurationError: the device is not available.
    """
    resolved = resolve_device(device)
    torch.set_num_threads(2)
    print_machine()

    def build(seas: int, way: str = "eager") -> MarineNavEnv:
        return MarineNavEnv(num_envs=seas, device=resolved, **WAYS[way])

    accelerator = accelerator_of(resolved)
    has = {"captured": accelerator.graphs, "compiled": accelerator.compiles_long_runs}
    ways = [way for way in WAYS if has.get(way, True)]
    active = active_robots(build(ACTIVE_SEAS, "captured" if accelerator.graphs else "eager"))
    print(f"{active:.2f} of 5 robots are active on average\n")
    rows, speeds = [], {}
    for size in sizes:
        of_size = {}
        for way in ways:
            step = random_steps(build(size, way))
            steps = steps_within(step, seconds, resolved)
            of_size[way] = timed(step, steps, per_unit=size, device=resolved)
        samples = take_turns(of_size, rounds)
        for way in ways:
            seas = samples.rate(way)
            speeds[f"{size} {way}"] = active * seas
            rows.append(
                [
                    f"{size}",
                    way,
                    f"{seas:,.0f}",
                    f"{active * seas:,.0f}",
                    f"{active * seas / REFERENCE:,.1f} x",
                    f"{1e6 / seas:,.2f}",
                ]
            )
    header = ["seas", "steps", "sea-steps/s", "robot-steps/s", "of reference", "us a sea"]
    print_table(header, rows)
    runs = {
        "plain": plain_steps(OVERHEAD_SEAS, resolved),
        "torchrl": random_steps(build(OVERHEAD_SEAS)),
    }
    steps = steps_within(runs["plain"], seconds, resolved)
    sides = {side: timed(run, steps, device=resolved) for side, run in runs.items()}
    overhead = take_turns(sides, rounds).ratio("plain", "torchrl") - 1.0
    print(
        f"reference: {REFERENCE:.0f} robot-steps/s, noted on an earlier machine; "
        "no command here repeats it"
    )
    print(f"EnvBase costs {overhead:.1%} on top of the plain loop at {OVERHEAD_SEAS} seas\n")
    return {
        "robot_steps_per_second": {name: round(rate, 1) for name, rate in speeds.items()},
        "reference": REFERENCE,
        "overhead_1024": round(overhead, 4),
        "active_robots": round(active, 3),
    }


if __name__ == "__main__":
    main(measure)
