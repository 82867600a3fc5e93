"""Print a hash of the parameters that each agent has after a short training in each environment.

Two versions of this library that print the same hashes train alike, bit for bit, on one machine:

    python -m benchmarks.fingerprints > before.txt      # in one checkout
    python -m benchmarks.fingerprints > after.txt       # in the other one
    diff before.txt after.txt
"""

import hashlib
import tempfile
from pathlib import Path

from safetensors import safe_open

from benchmarks.fixture import Count
from benchmarks.learning.tasks import CONTINUOUS, DISCRETE
from benchmarks.report import Figures, main
from trainers.run import run

# Agents of each environment, by the arguments that select it.
PAIRS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("env=fanuc",): (*CONTINUOUS, *DISCRETE),
    ("env=marinenav",): (*CONTINUOUS, *DISCRETE),
    ("env=gym", "env.name=Pendulum-v1"): CONTINUOUS,
    ("env=gym", "env.name=CartPole-v1"): ("ppo", *DISCRETE),
}

SETTINGS = (
    "device=cpu",
    "seed=7",
    "env.num_envs=16",
    "trainer.random_frames=1024",
    "trainer.evaluation_episodes=16",
    "evaluation.episodes=16",
    "trainer.loggers=[]",
    "trainer.show_progress=false",
)


def fingerprint(agent: str, env: tuple[str, ...], frames: int) -> str:
    """Train, and return a hash of all networks in the last checkpoint."""
    with tempfile.TemporaryDirectory() as runs:
        budget = f"trainer.total_frames={frames}"
        newest = run(f"agent={agent}", *env, *SETTINGS, budget, f"runs={runs}").newest
        assert newest is not None, "every training ends with a checkpoint"
        return _hash(newest)


def _hash(checkpoint: Path) -> str:
    """Return a hash of the floating-point tensors of all networks, independent of their names."""
    with safe_open(checkpoint, "pt") as file:
        tensors = [file.get_tensor(key) for key in file.keys() if "/agent/networks/" in key]  # noqa: SIM118
    digests = {
        hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        for tensor in tensors
        if tensor.is_floating_point()
    }
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]


def measure(*, agents: str = "", frames: Count = 4096) -> Figures:
    """Train every agent in every environment that it can act in, and print the hashes.

    Args:
        agents: names of the agents, separated by commas; all of them if empty.
        frames: environment steps of each training, at least 1 (4096).
    """
    chosen = set(filter(None, agents.split(",")))
    hashes = {}
    for env, names in PAIRS.items():
        for agent in names:
            if chosen and agent not in chosen:
                continue
            title = f"{agent} {' '.join(env)}"
            hashes[title] = fingerprint(agent, env, frames)
            print(f"{title:36}  {hashes[title]}", flush=True)
    return hashes


if __name__ == "__main__":
    main(measure)
