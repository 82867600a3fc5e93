"""Trainers of small agents."""

import csv
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torchrl.envs import EnvBase

from agents.base import Agent
from tests.helpers.agents import CPU, Case, assert_equal, build_for, parameters
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state
from trainers import Callback
from trainers.training.trainer import TorchRLTrainer


def trainer_of(env: EnvBase, agent: Agent, folder: Path, **settings: Any) -> TorchRLTrainer:
    """Return a trainer that logs to a CSV file alone, and shows no progress."""
    defaults = {"replay_capacity": 2000, "loggers": ["csv"], "show_progress": False}
    return TorchRLTrainer(env, agent, folder, **{**defaults, **settings})


def make_trainer(
    case: Case,
    folder: Path,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    device: torch.device = CPU,
    **settings: Any,
) -> TorchRLTrainer:
    """Return a trainer of 16 environments on the host, for 1024 frames and two checkpoints."""
    torch.manual_seed(seed)
    env = case.env()
    agent = build_for(env, case.agent_class, device, **(options or {}))
    defaults = {
        "total_frames": 1024,
        "random_frames": 128,
        "log_interval": 256,
        "evaluation_env": case.env(),
        "evaluation_interval": 512,
        "evaluation_episodes": 16,
        "checkpoint_interval": 512,
    }
    return trainer_of(env, agent, folder, **{**defaults, **settings})


class FolderAt(Callback):
    """Copies the folder of a run once a checkpoint is on disk, as if the run ended there."""

    def __init__(self, frames: int, copy: Path) -> None:
        self._frames = frames
        self._copy = copy

    def on_save(self, trainer: TorchRLTrainer, path: Path) -> None:
        if path == trainer.checkpoints.path(self._frames):
            shutil.copytree(trainer.folder, self._copy)


def train_briefly(env: EnvBase, agent: Agent, folder: Path, **settings: Any) -> TorchRLTrainer:
    """Train for 512 frames, and return the trainer."""
    defaults = {"total_frames": 512, "random_frames": 128, "log_interval": 256}
    trainer = trainer_of(env, agent, folder, **{**defaults, **settings})
    trainer.train()
    return trainer


def before_each(owner: Any, name: str, action: Callable[[], object]) -> None:
    """Call a function before each call of a method."""
    method = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        action()
        return method(*args, **kwargs)

    setattr(owner, name, wrapped)


def metric_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the metrics file of a run."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_resumes(second: TorchRLTrainer, whole: TorchRLTrainer) -> None:
    """Continue from the newest checkpoint to the end, and compare with an uninterrupted run."""
    second.load(find_checkpoint(second.checkpoints.folder))
    second.train()
    assert second.updates == whole.updates
    assert_equal(parameters(whole.agent), parameters(second.agent))


def assert_same_checkpoints(one: TorchRLTrainer, other: TorchRLTrainer) -> None:
    """Assert that the newest checkpoints of two runs hold the same bytes, except their seconds.

    Each of several processes has a checkpoint of its share, which has no seconds. The replays are
    compared as the trainers hold them: files hold parts of them.
    """
    folders = [trainer.checkpoints.folder for trainer in (one, other)]
    ours, theirs = (load_state(find_checkpoint(folder)) for folder in folders)
    for state in (ours, theirs):
        forget_chance(state)
    assert_same(ours, theirs)
    replays = [
        tree_map(lambda x: x.clone(), trainer.experience.part(()).state) for trainer in (one, other)
    ]
    assert_same(replays[0], replays[1], "replay")


def forget_chance(state: dict[str, Any]) -> None:
    """Remove the contents of a checkpoint that differ between equal runs."""
    state.pop("seconds", None)
    world = state["collector"].get("world", {})
    for record in world.get("episodes", {}).get("records", ()):
        if record["seed"] is not None:
            del record["generator"]  # before it was seeded


def assert_same(one: Any, other: Any, name: str = "") -> None:
    """Assert that two nested states hold the same bytes; a failure names the differences."""
    assert not [*differences(one, other, name)]


def differences(one: Any, other: Any, name: str = "") -> Iterator[str]:
    """Yield the names of all values that are not the same bytes in two nested states."""
    if type(one) is not type(other):
        yield name
    elif isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        if not (same and one.numpy().tobytes() == other.numpy().tobytes()):
            yield name
    elif isinstance(one, Mapping):
        yield from (f"{name}/{key}" for key in one.keys() ^ other.keys())
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{name}/{key}")
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for number, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(ours, theirs, f"{name}/{number}")
    elif repr(one) != repr(other):  # a number that is not finite differs from itself
        yield name
