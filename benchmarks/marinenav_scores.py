"""Evaluate the policies in `pretrained/marinenav`, beside the paper's agents and baselines.

The protocol is the paper's: default noise and 100 episodes at each of the six levels of its
schedule. An episode ends with the first collision, the last arrival or after 1,001 steps, and is
successful if all robots have reached their goals. All policies play the same episodes.

    python -m benchmarks.marinenav_scores
    python -m benchmarks.marinenav_scores agent=ac_iqn train=true    # replaces the shipped policy
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.fixture import Count
from benchmarks.report import Figures, main, print_machine, print_table
from envs.marinenav.baselines import (
    ModelPredictive,
    PotentialField,
    RandomPolicy,
    StraightToGoal,
)
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.evaluation import Policy, Results, evaluate
from envs.marinenav.scenario import draw_scenarios
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.errors import ConfigurationError
from trainers.run import run
from trainers.runs.policy_files import load_checkpoint, load_policy, save_policy

PRETRAINED: Final = Path("pretrained/marinenav")
AGENTS: Final = ("ac_iqn", "sac", "iqn", "ddpg", "dqn", "ppo", "rainbow")
HEADER: Final = (
    *("policy", *map(str, range(6)), "all", "interval", "return", "time, s", "energy"),
    *("frames", "trained, min"),
)

# The authors' released checkpoints in their environment, 100 episodes per level: success rate at
# each level and overall, discounted return, time (s), energy.
REFERENCE: Final[dict[str, tuple[float, ...]]] = {
    "ac_iqn": (0.92, 0.94, 0.85, 0.67, 0.58, 0.69, 0.775, 33.02, 19.4, 30398.0),
    "sac": (0.98, 0.90, 0.80, 0.52, 0.66, 0.55, 0.735, 29.38, 29.3, 39215.0),
    "iqn": (0.92, 0.81, 0.78, 0.62, 0.55, 0.53, 0.702, 25.65, 32.8, 35737.0),
    "ddpg": (0.76, 0.62, 0.43, 0.25, 0.30, 0.25, 0.435, 24.49, 18.7, 30558.0),
    "dqn": (0.81, 0.52, 0.35, 0.25, 0.22, 0.16, 0.385, 22.97, 20.1, 30995.0),
}


def scores(
    *,
    agent: Literal["ac_iqn", "sac", "iqn", "ddpg", "dqn", "ppo", "rainbow", "all"] = "all",
    train: bool = False,
    episodes: Count = 100,
    device: str = "auto",
) -> Figures:
    """Evaluate shipped policies and baselines on the same episodes, after training on request.

    Args:
        agent: agent to evaluate: ac_iqn, sac, iqn, ddpg, dqn, ppo, rainbow or all (all).
        train: first train as `python -m trainers.run agent=... env=marinenav` does, and save the
            policy of the best checkpoint in pretrained/marinenav (false).
        episodes: number of episodes at each of the six levels, at least 1 (100).
        device: compute device: auto, cpu, cuda, ... (auto).

    Raises:
        ConfigurationError: the agent has no policy file, or the device is not available.
    """
    names = AGENTS if agent == "all" else (agent,)
    place = resolve_device(device)
    if train:
        for name in names:
            _train(name, device)
    elif agent != "all" and not _file(agent).is_file():
        raise ConfigurationError(f"agent={agent}: {_file(agent)} not found; add train=true")
    print_machine()
    training: dict[str, tuple[int, float]] = {}
    policies: dict[str, Policy] = {
        "random": RandomPolicy(device=place),
        "straight": StraightToGoal(device=place),
        "potential field": PotentialField(device=place),
        "model predictive": ModelPredictive(device=place),
    }
    for name in names:
        if _file(name).is_file():
            policies[name] = load_policy(_file(name), place).policy
            state = load_checkpoint(_file(name))
            training[name] = (state["frames"], state["seconds"] / 60.0)
    scenarios = draw_scenarios(PAPER_STAGES, episodes, seed=0)
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for name, policy in policies.items():
        start = time.perf_counter()
        found_scores = evaluate(policy, scenarios=scenarios, device=place, seed=0)
        frames, minutes = training.get(name, (0, math.nan))
        rows.append(
            [name, *_cells(found_scores), f"{frames:,}" if frames else "", _number(minutes, 0)]
        )
        if name in REFERENCE:
            rows.append([f"{name}, authors", *_row(REFERENCE[name]), "", ""])
        figures[name] = {
            "levels": [round(level.success.mean, 4) for level in found_scores.levels],
            "success": round(found_scores.overall.success.mean, 4),
            "return": round(found_scores.overall.discounted_return.mean, 3),
            "reference": REFERENCE[name][6] if name in REFERENCE else None,
            "frames": frames or None,
            "seconds": round(time.perf_counter() - start, 1),
        }
    print_table(HEADER, rows)
    print(
        f"success rate by level and overall with 95 % interval, {episodes} episodes per level; "
        "frames are steps of single seas until the evaluated checkpoint"
    )
    return figures


def _file(agent: str) -> Path:
    return PRETRAINED / f"{agent}.safetensors"


def _train(agent: str, device: str) -> None:
    """Train with the agent's preset, and save the policy of the best checkpoint."""
    best = run(f"agent={agent}", "env=marinenav", f"device={device}").best
    assert best is not None, "every run ends with an evaluation"
    save_policy(best, _file(agent))
    print(f"kept as {_file(agent)}\n", flush=True)


def _cells(found: Results) -> list[str]:
    """Return the cells of a policy that was evaluated here."""
    overall = found.overall
    interval = f"{overall.success.low:.3f} to {overall.success.high:.3f}"
    measured = (overall.discounted_return, overall.time, overall.energy)
    levels = [level.success.mean for level in found.levels]
    return _row((*levels, overall.success.mean, *(each.mean for each in measured)), interval)


def _row(figures: Sequence[float], interval: str = "") -> list[str]:
    """Return the cells of figures in the order of `REFERENCE`."""
    *levels, success, discounted_return, seconds, energy = figures
    return [
        *(f"{level:.2f}" for level in levels),
        f"{success:.3f}",
        interval,
        f"{discounted_return:.2f}",
        _number(seconds, 1),
        _number(energy, 0),
    ]


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:,.{digits}f}"


if __name__ == "__main__":
    main(scores)
