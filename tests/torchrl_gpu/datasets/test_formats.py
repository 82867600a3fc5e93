"""Datasets of both formats: there and back bit for bit, and as other programs read them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.helpers.datasets import (
    FRAMES,
    KINDS,
    LENGTHS,
    assert_same_episodes,
    interface_of,
    random_episodes,
)
from torchrl_gpu import extras
from torchrl_gpu.datasets import dataset as module
from torchrl_gpu.datasets import lerobot_format
from torchrl_gpu.datasets.dataset import DatasetFormat, open_dataset, write_dataset
from torchrl_gpu.errors import ConfigurationError

minari = pytest.importorskip("minari", "0.5.4")  # needs Python 3.11

every_format = pytest.mark.parametrize("format", ["minari", "lerobot"])


def written(path: Path, format: DatasetFormat, kind: str = "vector", **options: Any) -> Any:
    torch.manual_seed(0)
    interface = interface_of(kind, options.pop("actions", "continuous"))
    episodes = random_episodes(interface, **options)
    write_dataset(path, episodes, interface, format)
    return episodes


@every_format
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", ["continuous", "discrete"])
def test_episodes_come_back_bit_for_bit(
    kind: str, actions: str, format: DatasetFormat, tmp_path: Path
) -> None:
    episodes = written(tmp_path / "data", format, kind, actions=actions)
    found = open_dataset(tmp_path / "data")
    assert found.num_episodes == len(episodes)
    assert_same_episodes(found, episodes)
    assert_same_episodes(found, episodes)  # a second time


@every_format
def test_success_that_is_unknown_stays_unknown(format: DatasetFormat, tmp_path: Path) -> None:
    episodes = written(tmp_path / "data", format, success=False)
    assert_same_episodes(open_dataset(tmp_path / "data"), episodes)


@every_format
def test_numbers_that_are_not_finite_come_back(format: DatasetFormat, tmp_path: Path) -> None:
    interface = interface_of()
    (episode,) = random_episodes(interface, [4])
    episode.reward[:3] = torch.tensor([torch.inf, -torch.inf, -0.0])
    write_dataset(tmp_path / "data", [episode], interface, format)
    (found,) = open_dataset(tmp_path / "data")
    assert torch.equal(found.reward.view(torch.int32), episode.reward.view(torch.int32))


def test_many_files_of_a_lerobot_dataset_are_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lerobot_format, "_BYTES_PER_FILE", 1000)
    monkeypatch.setattr(lerobot_format, "_FILES_PER_CHUNK", 2)
    episodes = written(tmp_path / "data", "lerobot", lengths=[20, 3, 20, 20, 1, 20])
    assert len(list((tmp_path / "data" / "data").glob("chunk-*/*.parquet"))) > 2
    assert len(list((tmp_path / "data" / "data").glob("chunk-*"))) > 1
    assert_same_episodes(open_dataset(tmp_path / "data"), episodes)


def test_a_minari_dataset_is_read_by_minari(tmp_path: Path) -> None:
    episodes = written(tmp_path / "data", "minari", "colour", actions="discrete")
    found = minari.MinariDataset(tmp_path / "data" / "data")
    assert found.total_episodes == len(episodes)
    assert found.total_steps == sum(LENGTHS)
    for one, own in zip(found, episodes, strict=True):
        assert np.array_equal(one.observations["pixels"], own.observations["pixels"].numpy())
        assert found.observation_space["pixels"].contains(one.observations["pixels"][0])
        assert np.array_equal(one.actions, own.action.numpy())
        assert len(one.infos["success"]) == len(own) + 1


def test_a_lerobot_dataset_has_the_documented_layout(tmp_path: Path) -> None:
    episodes = written(tmp_path / "data", "lerobot", "stack")
    info = json.loads((tmp_path / "data" / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"]) == (len(LENGTHS), sum(LENGTHS))
    assert info["fps"] == 20
    image = info["features"]["observation.images.pixels"]
    assert (image["dtype"], image["shape"]) == ("image", [6, 5, 3])
    path = info["data_path"].format(chunk_index=0, file_index=0)
    table = pq.read_table(tmp_path / "data" / path)
    assert set(table.column_names) == info["features"].keys()
    assert table["episode_index"].to_pylist() == [0] * 5 + [1] + [2] * 9
    assert table["frame_index"].to_pylist() == [*range(5), 0, *range(9)]
    assert table["index"].to_pylist() == [*range(sum(LENGTHS))]
    rows = pq.read_table(tmp_path / "data" / "meta/episodes/chunk-000/file-000.parquet")
    assert rows["dataset_from_index"].to_pylist() == [0, 5, 6]
    assert rows["dataset_to_index"].to_pylist() == [5, 6, 15]
    statistics = json.loads((tmp_path / "data" / "meta" / "stats.json").read_text())
    actions = torch.cat([each.action for each in episodes]).double()
    found = statistics["action"]
    assert torch.allclose(torch.tensor(found["mean"]).double(), actions.mean(0))
    assert torch.allclose(torch.tensor(found["std"]).double(), actions.std(0, correction=0))
    assert np.shape(statistics["observation.images.pixels"]["mean"]) == (3, 1, 1)
    assert 0.3 < np.mean(statistics["observation.images.pixels"]["mean"]) < 0.7


def of_another_program(path: Path, drop: set[str]) -> None:
    """Remove from a LeRobot dataset the parts that only this library writes."""
    for edges in path.glob("meta/torchrl_gpu*"):
        edges.unlink()
    info = json.loads((path / "meta" / "info.json").read_text())
    del info["torchrl_gpu"]
    info["features"] = {n: x for n, x in info["features"].items() if n not in drop}
    (path / "meta" / "info.json").write_text(json.dumps(info))


def test_episodes_of_other_programs_lack_their_last_observation(tmp_path: Path) -> None:
    episodes = written(tmp_path / "data", "lerobot", lengths=[5, 4])
    of_another_program(tmp_path / "data", {"next.terminated", "next.truncated", "next.success"})
    done = open_dataset(tmp_path / "data")
    assert [len(each) for each in done] == [5, 4]  # a done without a reason is a termination
    for one, own in zip(done, episodes, strict=True):
        assert torch.equal(
            one.observations["observation"][:-1], own.observations["observation"][:-1]
        )
        assert one.terminated.tolist() == [False] * (len(own) - 1) + [True]


def test_success_tells_terminations_of_other_programs_from_time_limits(tmp_path: Path) -> None:
    _, second = episodes = random_episodes(interface_of("colour"), [5, 4])
    assert second.success is not None
    second.success[:] = False
    write_dataset(tmp_path / "data", episodes, interface_of("colour"), "lerobot")
    of_another_program(tmp_path / "data", {"next.terminated", "next.truncated"})
    one, other = open_dataset(tmp_path / "data")
    assert (len(one), len(other)) == (5, 3)
    assert one.terminated[-1]
    assert other.truncated.tolist() == [False, False, True]
    assert torch.equal(other.observations["pixels"], second.observations["pixels"][:-1])


def test_a_stack_of_other_frames_is_refused_by_lerobot(tmp_path: Path) -> None:
    (episode,) = random_episodes(interface_of("stack"), [4])
    episode.observations["pixels"][2, 0] += 1
    with pytest.raises(ConfigurationError, match=f"its {FRAMES} frames are not those of"):
        write_dataset(tmp_path / "data", [episode], interface_of("stack"), "lerobot")
    assert not list(tmp_path.iterdir())


@every_format
def test_a_dataset_appears_whole_or_not_at_all(format: DatasetFormat, tmp_path: Path) -> None:
    def breaking() -> Any:
        yield random_episodes(interface_of(), [4])[0]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_dataset(tmp_path / "data", breaking(), interface_of(), format)
    assert not list(tmp_path.iterdir())


@every_format
def test_a_relative_path_is_one_in_the_working_folder(
    format: DatasetFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    episodes = written(Path("new/data"), format)
    assert_same_episodes(open_dataset("new/data"), episodes)


@every_format
def test_an_existing_folder_is_left_as_it_is(format: DatasetFormat, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it exists; choose another folder"):
        written(tmp_path, format)


def test_a_format_that_needs_a_newer_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._MIN_PYTHON, "minari", (4, 0))
    with pytest.raises(ConfigurationError, match=r"minari needs Python 4\.0 or later"):
        module.check_new(tmp_path / "data", "minari")


@every_format
def test_a_missing_package_is_named_with_its_extra(
    format: DatasetFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "data", format)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    match = rf'format {format}: .* not installed; pip install "torchrl-gpu\[data\]"'
    with pytest.raises(ConfigurationError, match=f"^{re.escape(str(tmp_path / 'data'))}: {match}"):
        open_dataset(tmp_path / "data")
    with pytest.raises(ConfigurationError, match=f"^a dataset: {match}"):
        written(tmp_path / "other", format)


def test_a_path_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="folder not found"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
        open_dataset(tmp_path / ("x" * 300))
    with pytest.raises(ConfigurationError, match="not a dataset of Minari or LeRobot"):
        open_dataset(tmp_path)


@every_format
def test_damaged_files_are_refused_in_one_line(format: DatasetFormat, tmp_path: Path) -> None:
    written(tmp_path / "data", format)
    for path in sorted((tmp_path / "data").rglob("*")):
        needed = path.suffix in (".json", ".hdf5") or path.parent.parent.name == "data"
        if not path.is_file() or not needed or path.name in ("stats.json", "tasks.parquet"):
            continue
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(ConfigurationError, match="damaged, or not of this layout"):
            list(open_dataset(tmp_path / "data"))
        path.write_bytes(content)


def test_a_picture_of_far_too_many_pixels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "data", "lerobot", "colour")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ConfigurationError, match="decompression bomb"):
        list(open_dataset(tmp_path / "data"))


def test_an_older_format_of_lerobot_is_named(tmp_path: Path) -> None:
    written(tmp_path / "data", "lerobot")
    path = tmp_path / "data" / "meta" / "info.json"
    path.write_text(path.read_text().replace('"v3.0"', '"v2.1"'))
    with pytest.raises(ConfigurationError, match=r"its format is v2\.1; convert it to v3\.0"):
        open_dataset(tmp_path / "data")


def test_minari_builds_no_environment_that_a_file_names(tmp_path: Path) -> None:
    written(tmp_path / "data", "minari")
    path = tmp_path / "data" / "data" / "metadata.json"
    content = json.loads(path.read_text())
    del content["observation_space"]
    content["env_spec"] = json.dumps({"id": "os:Nothing-v0"})
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="lacks observation_space or action_space"):
        open_dataset(tmp_path / "data")


def test_a_dataset_without_a_step_duration_has_one_frame_a_second(tmp_path: Path) -> None:
    interface = replace(interface_of(), step_seconds=None)
    write_dataset(tmp_path / "data", random_episodes(interface), interface, "lerobot")
    assert json.loads((tmp_path / "data" / "meta" / "info.json").read_text())["fps"] == 1
