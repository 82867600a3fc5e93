"""Measure frames per second of DQN on Pong beside Stable-Baselines3's DQN, in turns in one run.

Both have the network of Mnih et al. (Nature 518, 2015), the same number of environments in one
process, and one update with 32 transitions for every four frames. A frame is an environment step,
that is four frames of the game.

    python -m benchmarks.atari
"""

import pkgutil
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from benchmarks.fixture import Count, Training
from benchmarks.measuring import Run, take_turns, timed
from benchmarks.report import Figures, main, print_machine, print_table, require
from benchmarks.stable_baselines import make_env
from envs.gym.atari import FRAME_STACK
from trainers.run import settings_of

GAME, NUM_ENVS = "ALE/Pong-v5", 8
FRAMES_PER_UPDATE, RANDOM_FRAMES, REPLAY = 4, 80, 20_000

# The preset of the papers, with one thread of ALE's own, and settings for a short run.
COMMAND = (
    *("agent=dqn", "env=gym", f"env.name={GAME}", f"env.num_envs={NUM_ENVS}"),
    *("env.options={num_threads:1}", f"agent.utd_ratio={1 / FRAMES_PER_UPDATE}"),
    *("agent.target_period=250", "agent.epsilon_start=0.1", "agent.max_gradient_norm=10"),
)

WORDS = {
    "collecting": "collecting: acting and storing",
    "training": f"training: one update for {FRAMES_PER_UPDATE} frames",
}


def build_theirs(agent: Mapping[str, Any], updates: int) -> Run:
    """Return a run of frames of Stable-Baselines3's DQN with the settings of this library's.

    Args:
        agent: settings of the agent.
        updates: number of updates after each batched step.
    """
    model: Any = pkgutil.resolve_name("stable_baselines3:DQN")(
        "CnnPolicy",
        make_env(GAME, NUM_ENVS, FRAME_STACK),
        learning_rate=agent["learning_rate"],
        max_grad_norm=agent["max_gradient_norm"],
        batch_size=agent["batch_size"],
        train_freq=1,
        gradient_steps=updates,
        target_update_interval=agent["target_period"] * FRAMES_PER_UPDATE,
        exploration_initial_eps=agent["epsilon_start"],
        exploration_final_eps=agent["epsilon_end"],
        buffer_size=REPLAY,
        learning_starts=RANDOM_FRAMES,
        # Stores each stack once instead of twice, as the documentation of DQN suggests.
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        device="cpu",
    )
    return partial(model.learn, reset_num_timesteps=False)


def measure(
    *,
    rounds: Count = 7,
    frames: Annotated[int, Field(ge=8)] = 160,
) -> Figures:
    """Measure collecting and training in turns, and print the medians.

    Args:
        rounds: number of rounds after a first one that warms up, at least 1 (7).
        frames: number of frames per measurement of training, at least 8; collecting takes four
            times as many (160).

    Raises:
        ConfigurationError: Stable-Baselines3 or the extra `atari` is not installed.
    """
    require("stable_baselines3")
    torch.set_num_threads(1)
    print_machine()
    training = Training.of(COMMAND, random_frames=RANDOM_FRAMES, replay_capacity=REPLAY)
    build = partial(build_theirs, settings_of(*COMMAND).agent.settings)
    samples = take_turns(
        {
            ("sb3", "collecting"): timed(build(updates=0), 4 * frames),
            ("ours", "collecting"): timed(training.collect, 4 * frames),
            ("sb3", "training"): timed(build(NUM_ENVS // FRAMES_PER_UPDATE), frames),
            ("ours", "training"): timed(training, frames),
        },
        rounds,
    )
    training.close()
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for kind, text in WORDS.items():
        sb3, ours = samples.rate(("sb3", kind)), samples.rate(("ours", kind))
        ratio = samples.ratio(("ours", kind), ("sb3", kind))
        rows.append([text, f"{sb3:,.0f}", f"{ours:,.0f}", f"{ratio:.2f} x"])
        figures |= {f"sb3_{kind}": round(sb3, 1), f"ours_{kind}": round(ours, 1)}
        figures[f"{kind}_ratio"] = round(ratio, 3)
    print(f"DQN on {GAME}, {NUM_ENVS} environments, this library's by vector_entry_point")
    print_table(["frames/s", "SB3", "ours", "median ratio"], rows)
    return figures


if __name__ == "__main__":
    main(measure)
