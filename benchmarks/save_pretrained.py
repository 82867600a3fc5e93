"""Save the policies in `pretrained/` anew, in today's layout.

    python -m benchmarks.save_pretrained

A change of the layout of checkpoints runs this command while `load_checkpoint` still reads the old
layout, and then deletes the reading of it. The environment of each policy is built, because the
file describes what its policy reads and returns there; so Genesis and the Atari games have to be
installed. Parameters stay bit for bit.
"""

import sys
from contextlib import closing
from pathlib import Path

import torch
from torchrl.envs import EnvBase

from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.environments.specs import action_spec, observation_spec
from trainers.components.pairing import pair
from trainers.run import settings_of
from trainers.runs.policy_files import LAYOUT, identity, load_checkpoint, load_policy

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def save_anew(path: Path) -> None:
    """Replace a policy file by one of the same parameters in today's layout."""
    state = load_checkpoint(path)
    settings = settings_of("mode=eval", "device=cpu", f"checkpoint={path}")
    env: EnvBase = settings.env.replaced(num_envs=1).build(mode="eval", device=settings.device)
    with closing(pair(env, settings.agent.target)) as paired:
        agent = settings.agent.build(
            observation_spec(paired, settings.general.observation_keys),
            action_spec(paired),
            settings.device,
        )
        described = identity(agent, paired)
    kept = {name: state[name] for name in ("frames", "seconds", "policy")}
    save_state(path, {"layout": LAYOUT, **described, "config": settings.config, **kept})
    loaded = load_policy(path).policy.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in kept["policy"].items())


def save_all() -> int:
    """Replace all policy files, and print their sizes before and after."""
    for file in sorted(PRETRAINED.rglob("*.safetensors")):
        before = file.stat().st_size
        save_anew(file)
        print(f"{file.relative_to(PRETRAINED)}: {before:,} -> {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(save_all))
