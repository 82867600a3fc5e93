"""Replay of a run as a dataset."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, rank_folder
from torchrl_gpu.checkpoints.contents import check_count, reading
from torchrl_gpu.checkpoints.tensors import values_of
from torchrl_gpu.commands import call_with_arguments, show
from torchrl_gpu.datasets.dataset import DatasetFormat, check_new, new_dataset
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.episodes import Episode, episodes_of
from torchrl_gpu.tables import counted
from trainers.runs.folders import check_writable
from trainers.runs.policy_files import find_policy, load_checkpoint

# Tensors of a prioritized replay that are not transitions.
_PRIORITIES = ("leaves", "max_priority")


def main(arguments: Sequence[str]) -> int:
    """Call `export_replay` with arguments as typed."""
    return call_with_arguments(export_replay, arguments)


def export_replay(checkpoint: Path, path: Path, format: DatasetFormat = "minari") -> int:
    """Write the replay of a run as a dataset, which needs the extra `data`.

    torchrl-gpu replay checkpoint=runs/... path=FOLDER format=lerobot

    Args:
        checkpoint: run folder or newest checkpoint file of an off-policy agent.
        path: folder of the dataset, which must not exist.
        format: `minari`, which is the default, or `lerobot` (v3.0).

    Returns:
        0, the exit code of the command.

    Raises:
        ConfigurationError: the replay was not saved, or the dataset cannot be written.
    """
    check_writable(path, "path")
    check_new(path, format)
    found = find_policy(checkpoint, best=False)
    state = load_checkpoint(found)
    with reading(found):
        interface = PolicyInterface.from_state(state["interface"])
    episodes = transitions = 0
    with new_dataset(path, format, interface) as write:
        for episode in _episodes(found, state.get("processes", 1), interface):
            write(episode)
            episodes, transitions = episodes + 1, transitions + len(episode)
    show(f"{counted(episodes, 'episode')}, {counted(transitions, 'transition')}\n{path}")
    return 0


def _episodes(checkpoint: Path, processes: int, interface: PolicyInterface) -> Iterator[Episode]:
    """Yield the episodes in the replays of all processes of a run."""
    with reading(checkpoint):
        check_count(processes, "processes", low=1, high=4096)
    for rank in range(processes):
        folder = rank_folder(checkpoint.parent, rank)
        path = folder / checkpoint.name
        parts = CheckpointFolder(folder).load_replay(path)
        if not parts or "current_row" not in parts[-1]:
            raise ConfigurationError(
                f"checkpoint={path}: no replay is saved beside it; only the newest checkpoint of "
                "an off-policy agent has one"
            )
        with reading(path):
            states = [
                {name: x for name, x in part.items() if name not in _PRIORITIES} for part in parts
            ]
            num_envs = states[-1]["current_row"].shape[0]
            action = interface.action_spec
            buffer = ReplayBuffer(
                int(values_of(states[-1]["capacity"])),
                interface.observation_spec[0].expand(num_envs),
                action[0].expand(num_envs, *action.shape[1:]),
                torch.device("cpu"),
                frame_stacks={
                    tuple(name.split(".")): frames
                    for name, frames in interface.frame_stacks.items()
                },
                setting="observations of the saved replay",
            )
            buffer.load_state_dict(*states)
        yield from episodes_of(buffer)
