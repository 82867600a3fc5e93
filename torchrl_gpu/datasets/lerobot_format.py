"""Datasets of LeRobot, in its format v3.0 as of lerobot 0.4, without that package.

The `lerobot` package pins older versions of torch. Layout: Parquet files of frames under `data/`,
and under `meta/` descriptions of episodes, tasks and features, see
https://huggingface.co/docs/lerobot/lerobot-dataset-v3. Images are stored as PNG, without loss.

The format has one row per action, so that the last observation of an episode, and the frames before
the newest one of a stack at its beginning, have no place in it. They stand in
`meta/torchrl_gpu_edges.parquet`, which other programs need not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.datasets.columns import Array, Column, array_of, is_image, table_of, tasks_table
from torchrl_gpu.datasets.dataset import Dataset, about
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.episodes import Episode

_ABOUT = "torchrl_gpu"
_EDGES = "meta/torchrl_gpu_edges.parquet"
_INFO, _STATS, _TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
_CHUNK = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_DATA, _EPISODES = f"data/{_CHUNK}", f"meta/episodes/{_CHUNK}"
_FILES_PER_CHUNK, _BYTES_PER_FILE = 1000, 100 * 2**20

_STATE, _IMAGES, _OBSERVED = "observation.state", "observation.images.", "observation."

_REWARD, _DONE, _SUCCESS = "next.reward", "next.done", "next.success"
_TERMINATED, _TRUNCATED = "next.terminated", "next.truncated"


class Writer:
    """Writes episodes as a LeRobot dataset into an empty folder.

    `name` is that of the dataset, and of its only task.
    """

    def __init__(self, folder: Path, name: str, interface: PolicyInterface) -> None:
        self._folder, self._name = folder, name
        self._about = about(interface)
        self._stacks = interface.frame_stacks
        self._frames = max(self._stacks.values(), default=1)
        self._fps = 1.0 / (interface.step_seconds or 1.0)
        self._names: dict[str, str] = {}  # of the observations, by column
        self._columns: dict[str, Column] = {}
        self._scalars: list[str] = []
        self._episodes: list[dict[str, Any]] = []
        self._edges: list[pa.Table] = []
        self._file: pq.ParquetWriter | None = None
        self._file_index = -1
        self._bytes = self._rows = 0

    def add(self, episode: Episode) -> None:
        """Write one episode."""
        steps, before = len(episode), self._frames - 1
        frames = {name: self._frames_of(name, x) for name, x in episode.observations.items()}
        self._names = self._names or {_column_of(n, x, frames): n for n, x in frames.items()}
        observed = {column: frames[name] for column, name in self._names.items()}
        rows = {column: x[before : before + steps] for column, x in observed.items()}
        rows["action"] = episode.action.numpy()
        rows[_REWARD] = episode.reward.numpy()
        rows[_DONE] = (episode.terminated | episode.truncated).numpy()
        rows[_TERMINATED] = episode.terminated.numpy()
        rows[_TRUNCATED] = episode.truncated.numpy()
        if episode.success is not None:
            rows[_SUCCESS] = episode.success.numpy()
        self._scalars = [n for n in ("action", *self._names) if rows[n].ndim == 1]
        number, index = len(self._episodes), np.arange(steps)
        rows["timestamp"] = (index / self._fps).astype(np.float32)
        rows["frame_index"] = index
        rows["episode_index"] = np.full(steps, number)
        rows["index"] = index + self._rows
        rows["task_index"] = np.zeros(steps, np.int64)
        for name, values in rows.items():
            self._columns.setdefault(name, Column(values)).add(values)
        self._write(table_of(rows, {n: x.hub_feature() for n, x in self._columns.items()}))
        # The frames that have no row, with the numbers of the rows that they would have.
        missing = [*range(before), before + steps]
        edges = {column: x[missing] for column, x in observed.items()}
        edges["episode_index"] = np.full(len(missing), number)
        edges["frame_index"] = np.array(missing) - before
        self._edges.append(table_of(edges))
        chunk, file = divmod(self._file_index, _FILES_PER_CHUNK)
        self._episodes.append(
            {
                "episode_index": number,
                "tasks": [self._name],
                "length": steps,
                "data/chunk_index": chunk,
                "data/file_index": file,
                "dataset_from_index": self._rows,
                "dataset_to_index": self._rows + steps,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self._rows += steps

    def close(self) -> None:
        """Write the descriptions of the dataset.

        Raises:
            ConfigurationError: no episode was added; the format cannot express an empty dataset.
        """
        if self._file is None:
            raise ConfigurationError("a LeRobot dataset needs at least one episode")
        self._file.close()
        episodes = self._folder / _EPISODES.format(chunk_index=0, file_index=0)
        episodes.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self._episodes), episodes)
        pq.write_table(pa.concat_tables(self._edges), self._folder / _EDGES)
        pq.write_table(tasks_table([self._name]), self._folder / _TASKS)
        statistics = {name: column.statistics() for name, column in self._columns.items()}
        _write_json(self._folder / _STATS, statistics)
        info = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": len(self._episodes),
            "total_frames": self._rows,
            "total_tasks": 1,
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _BYTES_PER_FILE // 2**20,
            "video_files_size_in_mb": 200,
            "fps": int(self._fps) if self._fps.is_integer() else self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA,
            "video_path": None,
            "features": {name: column.feature() for name, column in self._columns.items()},
            _ABOUT: {**self._about, "observations": self._names, "scalars": self._scalars},
        }
        _write_json(self._folder / _INFO, info)

    def _frames_of(self, name: str, observed: Tensor) -> Array:
        """Return the frames `[history + T + 1, ...]` of an observation `[T + 1, ...]`."""
        count = self._stacks.get(name, 1)
        frames = observed
        if count > 1:
            split = observed.unflatten(1, (count, -1))
            frames = torch.cat((split[0, :-1], split[:, -1]))
        if count > 1 and not torch.equal(_stacked(frames, count), observed):
            raise ConfigurationError(
                f"observation {name}: its {count} frames are not those of consecutive steps; "
                "use the format minari"
            )
        missing = self._frames - count
        return torch.cat((frames[:1].expand(missing, *frames.shape[1:]), frames)).numpy()

    def _write(self, table: pa.Table) -> None:
        """Append rows to the newest file of data, or to another one if that is full."""
        if self._file is None or self._bytes + table.nbytes > _BYTES_PER_FILE:
            if self._file is not None:
                self._file.close()
            self._file_index += 1
            chunk, file = divmod(self._file_index, _FILES_PER_CHUNK)
            path = self._folder / _DATA.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self._bytes = pq.ParquetWriter(path, table.schema), 0
        self._file.write_table(table)
        self._bytes += table.nbytes


def opened(folder: Path) -> Dataset:
    """Open the dataset in a folder with `meta/info.json`."""
    info = json.loads((folder / _INFO).read_text(encoding="utf-8"))
    version, features = info["codebase_version"], info["features"]
    if not version.startswith("v3."):
        raise ConfigurationError(
            f"{folder}: its format is {version}; convert it to v3.0 with the tools of lerobot"
        )
    if missing := {"action", _REWARD, _DONE} - features.keys():
        raise ConfigurationError(f"{folder}: it has no column {min(missing)}, needed to learn")
    known = info.get(_ABOUT, {})
    return Dataset(folder, int(info["total_episodes"]), known, _Reader(folder, features, known))


class _Reader:
    """Reads the episodes of a LeRobot dataset.

    `features` are dtype and shape of each column, and `known` the entries that this library has
    written, empty for a dataset of another program.
    """

    def __init__(self, folder: Path, features: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        self._folder = folder
        self._names: dict[str, str] = known.get("observations") or {
            column: _name_of(column)
            for column, each in features.items()
            if column.startswith(_OBSERVED) and each["dtype"] != "video"
        }
        self._stacks: dict[str, int] = known.get("frame_stacks", {})
        self._frames = max(self._stacks.values(), default=1)
        flags = {_REWARD, _DONE, _TERMINATED, _TRUNCATED, _SUCCESS} & features.keys()
        self._shapes: dict[str, list[int]] = {
            name: list(features[name]["shape"]) for name in ("action", *self._names)
        }
        self._shapes |= {name: [] for name in (*flags, *known.get("scalars", ()))}

    def __call__(self) -> Iterator[Episode]:
        """Yield the episodes in their order."""
        path = self._folder / _EDGES
        edges = pq.read_table(path) if path.is_file() else None
        for path in sorted((self._folder / "data").glob("*/*.parquet")):
            table = pq.read_table(path, columns=[*self._shapes, "episode_index"])
            numbers = table["episode_index"].to_numpy()
            for number in np.unique(numbers).tolist():
                start, stop = np.searchsorted(numbers, [number, number + 1])
                rows = table.slice(start, stop - start)
                if edges is None:
                    yield from self._foreign(rows)
                else:
                    own = edges.filter(pc.field("episode_index") == number)
                    yield self._episode(own.slice(0, len(own) - 1), rows, own.slice(len(own) - 1))

    def _foreign(self, rows: pa.Table) -> Iterator[Episode]:
        """Yield an episode of another program, whose last observation is unknown.

        Its last row stands for it after a termination, where it does not matter; otherwise that
        row is the last observation, and the episode was truncated.
        """
        is_terminated = bool(self._ends(rows)[0][-1])
        after = rows.slice(len(rows) - 1)
        rows = rows if is_terminated else rows.slice(0, len(rows) - 1)
        if len(rows):
            episode = self._episode(rows.slice(0, 0), rows, after)
            if not is_terminated:
                episode.truncated[-1] = True
            yield episode

    def _episode(self, before: pa.Table, rows: pa.Table, after: pa.Table) -> Episode:
        """Return an episode from its rows and the frames before and after them."""
        observations = {}
        for column, name in self._names.items():
            parts = [self._tensor(each, column) for each in (before, rows, after) if len(each)]
            count = self._stacks.get(name, 1)
            observations[name] = _stacked(torch.cat(parts)[self._frames - count :], count)
        action, reward = (self._tensor(rows, column) for column in ("action", _REWARD))
        success = self._tensor(rows, _SUCCESS).bool() if _SUCCESS in self._shapes else None
        return Episode(observations, action, reward.float(), *self._ends(rows), success)

    def _ends(self, rows: pa.Table) -> tuple[Tensor, Tensor]:
        """Return where rows `[T]` terminated and were truncated, of other programs by success."""
        done = self._tensor(rows, _DONE).bool()
        own = next((n for n in (_TERMINATED, _SUCCESS) if n in self._shapes), _DONE)
        terminated = done & self._tensor(rows, own).bool()
        if _TRUNCATED in self._shapes:
            return terminated, self._tensor(rows, _TRUNCATED).bool()
        return terminated, done & ~terminated

    def _tensor(self, rows: pa.Table, column: str) -> Tensor:
        return torch.from_numpy(array_of(rows, column, self._shapes[column]))


def _column_of(name: str, frames: Array, names: Mapping[str, Array]) -> str:
    """Return the column of an observation, by the conventions of LeRobot."""
    if is_image(frames):
        return f"{_IMAGES}{name}"
    return _STATE if name == "observation" and "state" not in names else f"{_OBSERVED}{name}"


def _name_of(column: str) -> str:
    """Return the name of the observation in a column of another program."""
    is_state = column == _STATE
    return "observation" if is_state else column.removeprefix(_IMAGES).removeprefix(_OBSERVED)


def _stacked(frames: Tensor, count: int) -> Tensor:
    """Return stacks `[N, count * C, ...]` of consecutive frames `[count - 1 + N, C, ...]`."""
    if count == 1:
        return frames
    number = len(frames) - count + 1
    return torch.stack([frames[i : i + number] for i in range(count)], 1).flatten(1, 2)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
