"""Show why the success of a run in marinenav changes from checkpoint to checkpoint.

Every checkpoint of a run plays the same episodes, which no training has seen, at the six levels of
the paper. Its failures are collisions and robots that never arrive. The last columns describe the
robots that still sail at step 700: how many of them see neither robot nor buoy, how far from their
goals they are, and how fast they sail. Robots that wait for each other would be slow and in sight
of each other; robots that circle their goals are alone, near and fast.

    python -m trainers.run agent=sac env=marinenav trainer.checkpoint_interval=50000 \
        trainer.checkpoints_kept=60
    python -m benchmarks.marinenav_fluctuation run=runs/marinenav/sac/...
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torchrl.envs.utils import step_mdp

from benchmarks.fixture import Count
from benchmarks.report import print_figures, print_machine, print_table
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.env import MarineNavEnv
from envs.marinenav.evaluation import Policy, evaluate
from envs.marinenav.scenario import draw_scenarios
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.errors import ConfigurationError
from trainers.runs.policy_files import load_policy

_STEPS = 700
_GOAL_UNIT, _SPEED_UNIT = 55.0, 3.5  # m and m/s, units of the observation
HEADER = ("frames", "success", "collision", "late", "at step 700", "alone", "to goal, m", "m/s")


def compare(*, run: Path, episodes: Count = 30, seed: int = 1, device: str = "cpu") -> int:
    """Judge every checkpoint of a run, and describe the robots that do not arrive.

    Args:
        run: folder of the run.
        episodes: number of episodes at each of the six levels, at least 1 (30).
        seed: seed of the episodes (1).
        device: compute device: auto, cpu, cuda, ... (cpu).

    Raises:
        ConfigurationError: the folder has no checkpoints, or the device is not available.
    """
    place = resolve_device(device)
    paths = CheckpointFolder(run / "checkpoints").paths()
    if not paths:
        raise ConfigurationError(f"run={run}: there are no checkpoints")
    print_machine()
    scenarios = draw_scenarios(PAPER_STAGES, episodes, seed=seed)
    rows, figures = [], []
    for path in paths:
        policy = load_policy(path, place).policy
        scores = evaluate(policy, scenarios=scenarios, device=place, seed=seed).overall
        success, collision = scores.success.mean, scores.collision.mean
        late = _still_sailing(policy, scenarios, place)
        frames = int(path.stem.rpartition("_")[2])
        cells = [f"{late[name]:.3g}" for name in ("robots", "alone", "distance", "speed")]
        shares = [f"{share:.3f}" for share in (success, collision, 1.0 - success - collision)]
        rows.append([f"{frames:,}", *shares, *cells])
        figures.append({"frames": frames, "success": success, "collision": collision, **late})
    print_table(HEADER, rows)
    print_figures({"checkpoints": figures})
    return 0


@torch.no_grad()
def _still_sailing(policy: Policy, scenarios: list[Any], device: torch.device) -> dict[str, float]:
    """Return number, share without company, and medians of the robots that sail at step 700."""
    env = MarineNavEnv.from_scenarios(scenarios, normalize=True, device=device, seed=1)
    table, state = env.discrete_actions, env.reset()
    for _ in range(_STEPS):
        robots = state.get("robots")
        action = policy(robots).get("action")
        if not action.is_floating_point():
            robots.set("action", table[action])
        state = step_mdp(env.step(state))
    robots, sails = state.get("robots"), env.sea.active.T
    count = int(sails.sum())
    if not count:
        return {"robots": 0, "alone": 0.0, "distance": 0.0, "speed": 0.0}
    observation = robots.get("observation")[sails]
    alone = ~robots.get("objects_mask")[sails].any(-1)
    return {
        "robots": count,
        "alone": float(alone.float().mean()),
        "distance": _GOAL_UNIT * float(observation[:, :2].norm(dim=-1).median()),
        "speed": _SPEED_UNIT * float(observation[:, 2:4].norm(dim=-1).median()),
    }


if __name__ == "__main__":
    sys.exit(call_with_arguments(compare))
