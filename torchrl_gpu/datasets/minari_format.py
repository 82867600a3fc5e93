"""Datasets of Minari, whose own library reads and writes them.

Layout: https://minari.farama.org/content/dataset_standards/
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import minari
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from torch import Tensor
from torchrl.data import Bounded, Categorical, TensorSpec

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.datasets.dataset import Dataset, about
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.episodes import Episode

_ABOUT = "torchrl_gpu"

# Name of an observation that has no name in Minari, because it is the only one.
_ALONE = "observation"


class Writer:
    """Writes episodes as a Minari dataset into an empty folder, images without loss.

    A name without a version gets the version `-v0`.
    """

    def __init__(self, folder: Path, name: str, interface: PolicyInterface) -> None:
        self._is_alone = list(interface.leaves) == [_ALONE]
        spaces = {name: _space_of(leaf) for name, leaf in interface.leaves.items()}
        data = folder / "data"
        data.mkdir()
        self._storage = MinariStorage.new(
            data,
            observation_space=spaces[_ALONE] if self._is_alone else Dict(spaces),
            action_space=_space_of(interface.action_spec),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        name = re.sub(r"[^\w-]+", "_", name)
        self._storage.update_metadata(
            {
                "dataset_id": name if re.search(r"-v\d+$", name) else f"{name}-v0",
                "minari_version": minari.__version__,
                _ABOUT: about(interface),
            }
        )

    def add(self, episode: Episode) -> None:
        """Write one episode; `success` stands in its infos, where the first entry is of a reset."""
        observations: Any = {name: x.numpy() for name, x in episode.observations.items()}
        infos = {}
        if episode.success is not None:
            infos["success"] = np.concatenate(([False], episode.success.numpy()))
        buffer = EpisodeBuffer(
            observations=observations[_ALONE] if self._is_alone else observations,
            actions=episode.action.numpy(),
            rewards=episode.reward.numpy(),
            terminations=episode.terminated.numpy(),
            truncations=episode.truncated.numpy(),
            infos=infos,
        )
        self._storage.update_episodes([buffer])

    def close(self) -> None:
        """Do nothing: the library keeps its description up to date."""


def opened(folder: Path) -> Dataset:
    """Open the dataset in a folder with `metadata.json`."""
    raw = MinariStorage.read_raw_metadata(folder)
    # Without its spaces, Minari would build the environment that the file names.
    if not {"observation_space", "action_space"} <= raw.keys():
        raise ConfigurationError(f"{folder}: its metadata lacks observation_space or action_space")
    storage = MinariStorage.read(folder)
    count = int(raw["total_episodes"])

    def read() -> Iterator[Episode]:
        for episode in storage.get_episodes(range(count)):
            infos = episode["infos"] or {}
            success = infos.get("success")
            yield Episode(
                dict(_observations(episode["observations"])),
                torch.from_numpy(episode["actions"]),
                torch.from_numpy(episode["rewards"]).float(),
                torch.from_numpy(episode["terminations"]).bool(),
                torch.from_numpy(episode["truncations"]).bool(),
                None if success is None else torch.from_numpy(success[1:]).bool(),
            )

    space = storage.action_space
    action_range = None
    if isinstance(space, Box) and space.is_bounded():
        action_range = torch.from_numpy(space.low), torch.from_numpy(space.high)
    return Dataset(folder, count, dict(raw.get(_ABOUT, {})), read, action_range)


def _observations(observed: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the observations by name, nested ones joined by dots."""
    if not isinstance(observed, Mapping):
        yield name or _ALONE, torch.from_numpy(observed)
        return
    for key, each in observed.items():
        yield from _observations(each, f"{name}.{key}" if name else key)


def _space_of(leaf: TensorSpec) -> Space[Any]:
    """Return the Gymnasium space of one row of a spec."""
    dtype = torch.empty(0, dtype=leaf.dtype).numpy().dtype
    shape = tuple(leaf.shape[1:])
    if isinstance(leaf, Categorical) and not shape and dtype != np.bool_:
        return Discrete(int(leaf.space.n))
    if isinstance(leaf, Bounded):
        low, high = (side[0].numpy() for side in (leaf.space.low, leaf.space.high))
    elif dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return Box(low, high, shape, dtype.type)
