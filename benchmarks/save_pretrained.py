"""Save the policies in `pretrained/` anew, in today's layout.

    python -m benchmarks.save_pretrained
    python -m benchmarks.save_pretrained checkpoint=runs/... file=lift_cube/reach_pixels

The second command adds or replaces one policy, from a checkpoint of a run.

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
from torchrl_gpu.errors import ConfigurationError
from trainers.components.pairing import pair
from trainers.run import settings_of
from trainers.runs.policy_files import LAYOUT, identity, load_checkpoint, load_policy

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def save_policy(checkpoint: Path, path: Path) -> None:
    """Write a policy file with the parameters of a checkpoint or policy file, in today's layout."""
    state, policy = load_checkpoint(checkpoint), load_policy(checkpoint).policy.state_dict()
    settings = settings_of("mode=eval", "device=cpu", f"checkpoint={checkpoint}")
    env: EnvBase = settings.env.replaced(num_envs=1).build(mode="eval", device=settings.device)
    with closing(pair(env, settings.agent.target)) as paired:
        agent = settings.agent.build(
            observation_spec(paired, settings.general.observation_keys),
            action_spec(paired),
            settings.device,
        )
        described = identity(agent, paired)
    kept = {name: state[name] for name in ("frames", "seconds")}
    content = {"layout": LAYOUT, **described, "config": settings.config, **kept, "policy": policy}
    save_state(path, content)
    loaded = load_policy(path).policy.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in policy.items())


def save(*, checkpoint: Path | None = None, file: str | None = None) -> int:
    """Save one policy or all, and print the sizes of the files.

    Args:
        checkpoint: checkpoint of a run to save as a policy file; null saves all policy files anew.
        file: name of the policy file below `pretrained/`, without suffix, as lift_cube/sac.

    Raises:
        ConfigurationError: only one of the two arguments is given, or the checkpoint cannot be
            used.
    """
    if (checkpoint is None) != (file is None):
        raise ConfigurationError("give checkpoint=... and file=..., or neither")
    jobs = {path: path for path in sorted(PRETRAINED.rglob("*.safetensors"))}
    if checkpoint is not None:
        jobs = {PRETRAINED / f"{file}.safetensors": checkpoint}
    for path, source in jobs.items():
        before = source.stat().st_size
        save_policy(source, path)
        print(f"{path.relative_to(PRETRAINED)}: {before:,} -> {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(save))
