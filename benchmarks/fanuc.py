"""Measure the overhead over plain PyBullet and the speed-up over Stable-Baselines3.

Two comparisons, with the same arm and physics, in one run:

1. Speed of the environment alone, with SAC's policy acting, and with training at the default ratio,
   after each step and while the next one is simulated, as a share of the speed of a plain PyBullet
   loop on all cores.
2. Speed of acting with storing, and of training, beside Stable-Baselines3 with Gymnasium
   environments in processes (SubprocVecEnv) at the same number of updates per frame: one for each
   core (the largest power of two), and `peers`. The actor
   learns in every update, as theirs does, and not in every second one, as in the preset. This
   library runs `many` arms.

    python -m benchmarks.fanuc
"""

import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from benchmarks.fixture import Count, Training, random_steps
from benchmarks.measuring import Measurement, Samples, take_turns, timed, times
from benchmarks.raw_pybullet import RawLoop
from benchmarks.report import Figures, main, print_machine, print_table, require
from benchmarks.single_arm import SingleArm
from envs.fanuc.env import SOLVER_ITERATIONS
from envs.fanuc.robot import load_robot
from envs.fanuc.targets import HOME, load_targets
from envs.fanuc.worker_pool import default_num_workers, group_sizes
from torchrl_gpu.devices.host import keep_freed_memory, num_cores
from trainers.run import settings_of

COMMAND = ("agent=sac", "env=fanuc", "agent.actor_period=1")

Key = tuple[str, int]  # name of a measurement, and number of arms

WORDS = {
    "raw": "PyBullet alone, all cores",
    "env": "EnvBase, random actions",
    "policy": "with SAC's policy acting",
    "collect": "acting and storing",
    "training": "with training at the default ratio",
    "overlap": "with training during simulation",
}


class Ours:
    """The training pipeline of the README's command in parts, and plain PyBullet beside it.

    Args:
        num_arms: number of arms.
    """

    def __init__(self, num_arms: int) -> None:
        self.num_arms = num_arms
        sizes, workers = group_sizes(num_arms), default_num_workers(num_arms)
        shares = [sizes[i::workers] for i in range(workers)]
        self._raw = RawLoop(load_robot(), SOLVER_ITERATIONS["train"], HOME, shares)
        self._apart, self._together = (
            Training.of(
                (*COMMAND, f"env.num_envs={num_arms}"),
                random_frames=10 * num_arms,
                save_replay=True,
                overlap=overlap,
            )
            for overlap in (False, True)
        )

    def measurements(self, frames: int) -> dict[Key, Measurement]:
        """Return the measurements of all parts, each of about `frames` arm-steps."""
        arms, steps = self.num_arms, max(1, frames // self.num_arms)
        trained = arms * max(1, steps // 4)
        collector = self._apart.trainer.collector
        act = partial(collector.step, self._apart.trainer.agent.policy)
        parts = {
            "raw": timed(self._raw.step, steps, per_unit=arms),
            "env": timed(random_steps(collector.env), steps, per_unit=arms),
            "policy": timed(times(act), steps, per_unit=arms),
            "collect": timed(self._apart.collect, arms * steps),
            "training": timed(self._apart, trained),
            "overlap": timed(self._together, trained),
        }
        return {(name, arms): measure for name, measure in parts.items()}

    def close(self) -> None:
        """End all processes."""
        self._raw.close()
        self._apart.close()
        self._together.close()


def gymnasium_arms(count: int) -> Any:
    """Return Gymnasium environments in processes, as Stable-Baselines3 runs them."""
    robot = load_robot()
    bank = load_targets(robot)
    places = (bank.positions.numpy(), bank.starts.numpy())
    arm = partial(SingleArm, robot, SOLVER_ITERATIONS["train"], *places)
    return pkgutil.resolve_name("stable_baselines3.common.vec_env:SubprocVecEnv")([arm] * count)


def theirs(agent: Mapping[str, Any], arms: Any, frames: int) -> dict[Key, Measurement]:
    """Return the measurements of Stable-Baselines3's SAC with the settings of this library's."""
    sac = partial(
        pkgutil.resolve_name("stable_baselines3:SAC"),
        "MlpPolicy",
        arms,
        learning_rate=agent["learning_rate"],
        gamma=agent["gamma"],
        tau=agent["target_rate"],
        batch_size=agent["batch_size"],
        buffer_size=1_000_000,
        learning_starts=0,
        train_freq=max(1, round(1 / agent["utd_ratio"] / arms.num_envs)),  # steps of all arms
        policy_kwargs={"net_arch": agent["hidden_sizes"]},
        device="cpu",
    )
    return {
        ("sb3_collect", arms.num_envs): timed(sac(gradient_steps=0).learn, frames),
        ("sb3_training", arms.num_envs): timed(sac(gradient_steps=1).learn, frames),
    }


def measure(
    *,
    arms: Count = 64,
    many: Count = 512,
    peers: Count = 8,
    rounds: Count = 3,
    frames: Annotated[int, Field(ge=10)] = 25_000,
) -> Figures:
    """Run all measurements in turns, for several rounds, and print the medians.

    Args:
        arms: number of arms for the comparison with plain PyBullet, at least 1 (64).
        many: number of arms for the comparison with Stable-Baselines3, at least 1 (512).
        peers: number of environments of Stable-Baselines3 beside one for each core, a process
            each; 1, 2, 4, ... up to 32, so that its updates per frame are the same (8).
        rounds: number of rounds after a first one that warms up, at least 1 (3).
        frames: number of arm-steps per measurement, at least 10 (25000).

    Raises:
        ConfigurationError: Stable-Baselines3 is not installed.
    """
    require("stable_baselines3")
    settings = settings_of(*COMMAND, "device=cpu")
    torch.set_num_threads(settings.general.threads or torch.get_num_threads())
    keep_freed_memory()  # as the program does
    print_machine()
    teams = [Ours(number) for number in (arms, many)]
    sides = {key: side for team in teams for key, side in team.measurements(frames).items()}
    processes = sorted({min(32, 1 << num_cores().bit_length() - 1), peers})
    with ExitStack() as opened:
        for number in processes:
            envs = opened.enter_context(closing(gymnasium_arms(number)))
            sides |= theirs(settings.agent.settings, envs, frames // 10)
        samples = take_turns(sides, rounds)
    for team in teams:
        team.close()
    return report(samples, arms, many, processes)


def report(samples: Samples[Key], arms: int, many: int, processes: Sequence[int]) -> Figures:
    """Print both comparisons, and return their rates."""
    rows = []
    for part, text in WORDS.items():
        row = [text]
        for number in (arms, many):
            speed = samples.rate((part, number))
            row += [f"{speed:,.0f}", f"{speed / samples.rate(('raw', number)):.0%}"]
        rows.append(row)
    print_table(["arm-steps/s", f"{arms} arms", "of raw", f"{many} arms", "of raw"], rows)
    figures = {part: samples.rate((part, arms)) for part in WORDS}
    figures |= {f"{part}_{many}": samples.rate((part, many)) for part in WORDS}
    rows = []
    for text, kind, part in (
        ("acting and storing", "collect", "collect"),
        ("training", "training", "overlap"),
    ):
        for number in processes:
            sb3, ours = samples.rate((f"sb3_{kind}", number)), samples.rate((part, many))
            row = [text, f"{number}", f"{sb3:,.0f}", f"{ours:,.0f}", f"{ours / sb3:.1f} x"]
            rows.append(row)
            figures |= {f"sb3_{kind}_{number}": sb3, f"ours_{kind}": ours}
    header = ["arm-steps/s", "processes of SB3", "SB3", f"ours, {many} arms", "ratio"]
    print_table(header, rows)
    return {name: round(speed, 1) for name, speed in figures.items()}


if __name__ == "__main__":
    main(measure)
