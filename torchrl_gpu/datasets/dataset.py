"""Datasets of episodes on disk: `open_dataset`, `new_dataset` and `write_dataset`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.contents import UNEXPECTED
from torchrl_gpu.checkpoints.files import atomic_folder, reason
from torchrl_gpu.errors import ConfigurationError, one_line, shortened
from torchrl_gpu.extras import check_extra
from torchrl_gpu.replay.episodes import Episode

DatasetFormat = Literal["minari", "lerobot"]

# Packages that a format needs, all of the extra `data`, and the file by which it is known.
_NEEDS = {"minari": ("minari", "h5py"), "lerobot": ("pyarrow",)}
_MIN_PYTHON = {"minari": (3, 11), "lerobot": (3, 10)}  # of versions that keep images as they are
_MARKS = {"minari": "metadata.json", "lerobot": "meta/info.json"}


@dataclass(frozen=True)
class Dataset:
    """A dataset on disk; iterating over it reads one episode after the other.

    Attributes:
        path: its folder.
        num_episodes: number of episodes.
        about: facts that this library wrote beside the episodes: `action_table`, `frame_stacks` and
            `step_seconds` as in `PolicyInterface`; empty for a dataset of another program.
        action_range: lowest and highest values `[action_dim]` of continuous actions; None if the
            dataset does not tell.
    """

    path: Path
    num_episodes: int
    about: Mapping[str, Any]
    read: Callable[[], Iterator[Episode]]
    action_range: tuple[Tensor, Tensor] | None = None

    def __iter__(self) -> Iterator[Episode]:
        """Read the episodes in their order.

        Raises:
            ConfigurationError: a file is damaged.
        """
        with reading_dataset(self.path):
            yield from self.read()


def open_dataset(path: Path | str) -> Dataset:
    """Open the dataset of Minari or LeRobot in a folder; no episode is read yet.

    Raises:
        ConfigurationError: the folder is missing, cannot be read or has another layout, or a
            package is missing.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            raise ConfigurationError(f"{path}: folder not found; name that of a dataset")
        for name, mark in _MARKS.items():
            for folder in (path, path / "data"):
                if (folder / mark).is_file():
                    with reading_dataset(path):
                        return _module(name, str(path)).opened(folder)
    except OSError as error:  # of looking it up
        raise ConfigurationError(f"{path}: cannot be read: {reason(error)}") from error
    marks = " nor ".join(_MARKS.values())
    raise ConfigurationError(f"{path}: not a dataset of Minari or LeRobot: it has neither {marks}")


@contextmanager
def new_dataset(
    path: Path, format: DatasetFormat, interface: PolicyInterface
) -> Iterator[Callable[[Episode], None]]:
    """Write a dataset, which appears at its path when the block ends without an exception.

    The block receives a function that writes one episode.

    Raises:
        ConfigurationError: the folder exists, cannot be written, or a package is missing.
    """
    path = Path(path)
    check_new(path, format)
    # Minari takes a relative path for one below the folder itself.
    with atomic_folder(path) as partial:
        writer = _module(format).Writer(partial, path.name, interface)
        yield writer.add
        writer.close()


def write_dataset(
    path: Path,
    episodes: Iterable[Episode],
    interface: PolicyInterface,
    format: DatasetFormat = "minari",
) -> None:
    """Write episodes as a dataset; see `new_dataset`."""
    with new_dataset(path, format, interface) as write:
        for episode in episodes:
            write(episode)


def check_new(path: Path, format: DatasetFormat) -> None:
    """Refuse a dataset that could not be written, before its episodes are made.

    Raises:
        ConfigurationError: the folder exists or cannot be looked up, or a package of the format is
            missing.
    """
    if format not in get_args(DatasetFormat):
        known = ", ".join(get_args(DatasetFormat))
        raise ConfigurationError(f"format={format}: unknown; choose one of: {known}")
    _module(format)
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error
    if exists:
        raise ConfigurationError(f"{path}: it exists; choose another folder for the dataset")


def about(interface: PolicyInterface) -> dict[str, Any]:
    """Return `Dataset.about` of the episodes of a policy, as JSON has it."""
    table = interface.action_table
    return {
        "action_table": None if table is None else table.tolist(),
        "frame_stacks": dict(interface.frame_stacks),
        "step_seconds": interface.step_seconds,
    }


@contextmanager
def reading_dataset(path: Path) -> Iterator[None]:
    """Report an error of the block about the files of a dataset in one line."""
    try:
        yield
    except ConfigurationError:
        raise
    except (*UNEXPECTED, OSError, AssertionError) as error:
        cause = shortened(f"{type(error).__name__}: {one_line(error)}", 200)
        raise ConfigurationError(f"{path}: damaged, or not of this layout: {cause}") from error


def _module(format: str, source: str = "a dataset") -> Any:
    """Import the module of a format, with `opened` and `Writer`; errors begin with `source`."""
    if sys.version_info < _MIN_PYTHON[format]:
        version = ".".join(map(str, _MIN_PYTHON[format]))
        raise ConfigurationError(
            f"{source}: format {format} needs Python {version} or later; lerobot does not"
        )
    check_extra(f"{source}: format {format}", "data", *_NEEDS[format])
    return importlib.import_module(f"torchrl_gpu.datasets.{format}_format")
