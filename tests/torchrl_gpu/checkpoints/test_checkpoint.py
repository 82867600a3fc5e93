import json
import math
import os
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.helpers.files import files_limited_to, names
from tests.helpers.forks import forked
from torchrl_gpu.checkpoints.checkpoint import (
    CheckpointFolder,
    ReplayPart,
    find_checkpoint,
    replay_path,
)
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError


def part(size: int) -> ReplayPart:
    """Return a replay that its newest part holds alone."""
    return ReplayPart({"size": size})


def size(checkpoint: Path) -> int:
    """Return the size in the saved replay of a checkpoint."""
    content = load_state(replay_path(checkpoint))["state"]
    return int(content["size"])


# Checkpoint folder of a run


def test_the_newest_and_the_best_checkpoint_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    assert folder.latest() is None
    assert folder.best() is None
    for frames, score in [(100, 0.5), (200, 0.9), (300, None), (400, 0.7), (500, 0.8)]:
        path = folder.prepare(frames, {"frames": frames}, score=score)()
        assert folder.latest() == path
        assert load_state(path) == {"frames": frames}
    assert folder.best() == folder.folder / "frames_000000000200.safetensors"
    assert names(folder.folder) == [
        "best.json",
        "frames_000000000200.safetensors",
        "frames_000000000400.safetensors",
        "frames_000000000500.safetensors",
    ]
    folder.prepare(600, {}, score=0.95)()
    assert names(folder.folder) == [
        "best.json",
        "frames_000000000500.safetensors",
        "frames_000000000600.safetensors",
    ]


def test_the_latest_of_equal_scores_is_best_and_nan_is_never_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(100, {}, score=math.nan)()
    assert folder.best() is None
    folder.prepare(200, {}, score=-3.0)()
    best = folder.prepare(300, {}, score=-3.0)()
    folder.prepare(400, {}, score=math.nan)()
    assert folder.best() == best


def test_only_the_newest_checkpoint_has_a_replay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.prepare(100, {"frames": 100}, part(1), score=1.0)()
    assert size(first) == 1
    second = folder.prepare(200, {"frames": 200}, part(2))()
    assert not replay_path(first).exists()
    assert size(second) == 2
    assert folder.latest() == second
    folder.prepare(300, {"frames": 300})()
    assert list(tmp_path.glob("*_replay.safetensors")) == []


def ring(*numbers: int) -> ReplayPart:
    """Return the newest entries of a ring that keeps five."""
    written = numbers[-1] + 1
    oldest = max(0, written - 5)
    return ReplayPart({"numbers": list(numbers)}, (numbers[0],), (written,), (oldest,))


def numbers(folder: CheckpointFolder) -> list[list[int]]:
    """Return the entries in all parts of the saved replay."""
    latest = folder.latest()
    assert latest is not None
    parts = folder.load_replay(latest)
    assert parts is not None
    return [part["numbers"] for part in parts]


def test_the_replay_is_saved_in_parts_for_as_long_as_they_are_needed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    assert folder.since(100) == ()
    for frames, part, expected in [
        (100, ring(0, 1), [[0, 1]]),
        (200, ring(2, 3), [[0, 1], [2, 3]]),
        (300, ring(4, 5, 6), [[2, 3], [4, 5, 6]]),  # of 2 to 6
        (400, ring(7), [[2, 3], [4, 5, 6], [7]]),
        (400, None, [[2, 3], [4, 5, 6], [7]]),  # after an evaluation
        (500, ring(8), [[4, 5, 6], [7], [8]]),
    ]:
        folder.prepare(frames, {}, part)()
        assert folder.since(frames + 100) == (expected[-1][-1] + 1,)
        assert numbers(folder) == numbers(CheckpointFolder(tmp_path)) == expected
        assert len(list(tmp_path.glob("*_replay*"))) == len(expected)
    resumed = CheckpointFolder(tmp_path, keep=1)
    resumed.load_replay(tmp_path / "frames_000000000500.safetensors")
    assert resumed.since(600) == (9,)
    resumed.prepare(600, {}, ring(9, 10))()
    assert numbers(resumed) == [[4, 5, 6], [7], [8], [9, 10]]
    elsewhere = CheckpointFolder(tmp_path / "another")
    elsewhere.load_replay(tmp_path / "frames_000000000600.safetensors")
    assert elsewhere.since(700) == (), "its folder lacks the earlier parts"


def test_after_the_replay_of_another_run_all_of_it_is_saved(tmp_path: Path) -> None:
    folder, other = CheckpointFolder(tmp_path), CheckpointFolder(tmp_path / "another")
    folder.prepare(100, {}, ring(0, 1))()
    assert folder.load_replay(other.prepare(100, {}, ring(2, 3))()) is not None
    assert folder.since(200) == ()
    folder.prepare(200, {}, ReplayPart({"numbers": [2, 3, 4]}, (), (5,), (0,)))()
    assert numbers(folder) == [[2, 3, 4]]


def test_many_small_parts_are_merged(tmp_path: Path) -> None:
    folder, written = CheckpointFolder(tmp_path, keep=1), 0
    most = 0
    for frames in range(400):
        since = folder.since(frames)
        first = since[0] if since else 0
        written += frames + 1 - first
        part = ReplayPart({"numbers": list(range(first, frames + 1))}, since, (frames + 1,), (0,))
        folder.prepare(frames, {}, part)()
        most = max(most, len(list(tmp_path.glob("*_replay*"))))
    assert most <= 110
    assert written < 4 * 400
    assert [number for part in numbers(folder) for number in part] == list(range(400))


def test_a_part_that_was_deleted_ends_the_run_and_the_next_save_is_whole(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.prepare(100, {}, ring(0, 1))()
    replay_path(first).unlink()
    with pytest.raises(ConfigurationError, match=r"000100_replay.* was deleted while"):
        folder.prepare(200, {}, ring(2))()
    assert folder.latest() == first
    assert folder.since(200) == ()


def test_a_part_is_written_again_after_a_save_that_failed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(100, {}, ring(0, 1))()
    folder.prepare(200, {}, ring(2))()
    with files_limited_to(2_000), pytest.raises(ConfigurationError, match="cannot write"):
        folder.prepare(200, {"a": torch.zeros(10_000)})()  # the second save after as many frames
    assert folder.since(200) == (2,)
    folder.prepare(200, {}, ring(2))()
    assert numbers(folder) == [[0, 1], [2]]


def test_a_replay_is_read_as_long_as_it_is_complete(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    paths = [folder.prepare(100 * n, {}, ring(2 * n, 2 * n + 1))() for n in range(5)]
    parts = [CheckpointFolder(tmp_path).load_replay(path) for path in paths]
    assert parts[:4] == [None] * 4
    assert parts[4] is not None
    assert [part["numbers"] for part in parts[4]] == [[4, 5], [6, 7], [8, 9]]


def test_foreign_parts_of_a_replay_are_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(100, {}, ring(0, 1))()
    second = folder.prepare(200, {}, ring(2))()
    whole = load_state(replay_path(second))
    for content, said in [
        ({**whole, "parts": [["../frames_000000000100_replay.safetensors", [2]]]}, "not a replay"),
        ({**whole, "parts": [["frames_000000000100_replay.safetensors", [1e300]]]}, "not a whole"),
        ({"rows": torch.zeros(2)}, "another version"),
    ]:
        save_state(replay_path(second), content)
        with pytest.raises(ConfigurationError, match=said):
            folder.load_replay(second)


def test_a_checkpoint_is_written_after_its_replay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.prepare(100, {"frames": 100}, part(1))()
    with pytest.raises(TypeError):
        folder.prepare(200, {"bad": object()}, part(2))()
    assert folder.latest() == first
    assert size(first) == 1
    folder.prepare(300, {}, part(3))()
    assert [file.name[:19] for file in tmp_path.glob("*_replay*")] == ["frames_000000000300"]


def test_a_full_disk_loses_no_earlier_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.prepare(100, {"frames": 100}, part(1), score=1.0)()
    before = names(tmp_path)
    for state, replay in [
        ({"a": torch.zeros(10_000)}, None),
        ({}, ReplayPart({"a": torch.zeros(10_000)})),
    ]:
        with files_limited_to(10_000), pytest.raises(ConfigurationError, match="cannot write"):
            folder.prepare(200, state, replay, score=2.0)()
        assert names(tmp_path) == before
    assert load_state(find_checkpoint(tmp_path, best=True)) == {"frames": 100}


def test_the_folder_of_an_earlier_run_is_continued(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, keep=2).prepare(100, {"frames": 100}, score=1.0)()
    resumed = CheckpointFolder(tmp_path, keep=2)
    assert resumed.best() == resumed.latest() == tmp_path / "frames_000000000100.safetensors"
    (tmp_path / "notes.safetensors").write_text("of the user")
    for frames in (200, 300, 400):
        resumed.prepare(frames, {}, score=0.5)()
    assert resumed.best() == tmp_path / "frames_000000000100.safetensors"
    assert len(list(tmp_path.glob("frames_*"))) == 3
    assert (tmp_path / "notes.safetensors").exists()


def test_a_new_checkpoint_is_kept_even_if_others_have_more_frames(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.prepare(300, {})()
    assert folder.prepare(200, {"frames": 200}, part(2))().exists()
    assert replay_path(tmp_path / "frames_000000000200.safetensors").exists()
    assert folder.latest() == tmp_path / "frames_000000000300.safetensors"


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"frames": "x", "score": 1}', "\x00", "[" * 100_000),
        *('{"frames": 1e300, "score": 1}', '{"frames": Infinity, "score": 1}'),
        '{"frames": 50, "score": Infinity}',
    ],
)
def test_a_damaged_best_json_is_ignored(tmp_path: Path, text: str) -> None:
    folder = CheckpointFolder(tmp_path)
    (tmp_path / "best.json").write_text(text)
    assert folder.best() is None
    path = folder.prepare(100, {}, score=0.5)()
    assert folder.best() == path
    assert json.loads((tmp_path / "best.json").read_text()) == {"frames": 100, "score": 0.5}


def test_find_checkpoint_accepts_files_and_folders(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    best = folder.prepare(100, {}, score=1.0)()
    latest = folder.prepare(200, {}, part(1), score=0.5)()
    for place in (tmp_path, tmp_path / "checkpoints", str(tmp_path)):
        assert find_checkpoint(place) == latest
        assert find_checkpoint(place, best=True) == best
    assert find_checkpoint(best) == best
    named = best.rename(tmp_path / "without_replay.safetensors")
    assert find_checkpoint(named) == named
    with pytest.raises(ConfigurationError, match=f"only the replay buffer; use .*{latest.name}"):
        find_checkpoint(replay_path(latest))


def test_find_checkpoint_names_the_folder_of_a_file_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = CheckpointFolder(tmp_path / "run" / "checkpoints").prepare(100, {})()
    (path.parent / "rank_1").mkdir()
    monkeypatch.chdir(path.parent)
    assert find_checkpoint(".") == find_checkpoint(path.name) == path
    monkeypatch.chdir("rank_1")
    assert find_checkpoint("..") == find_checkpoint(f"../{path.name}") == path
    monkeypatch.chdir(tmp_path / "run")
    assert find_checkpoint(".") == path.relative_to(tmp_path / "run")


def test_find_checkpoint_returns_the_newest_without_scores(tmp_path: Path) -> None:
    latest = CheckpointFolder(tmp_path).prepare(100, {})()
    assert find_checkpoint(tmp_path, best=True) == latest


def test_find_checkpoint_reports_a_damaged_record_of_the_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(100, {}, score=1.0)()
    latest = folder.prepare(200, {}, score=0.5)()
    (tmp_path / "best.json").write_text("{")
    assert find_checkpoint(tmp_path) == latest
    assert not caplog.messages
    assert find_checkpoint(tmp_path, best=True) == latest
    (message,) = caplog.messages
    assert "best.json: damaged" in message
    assert message.endswith(f"using {latest.name}")


def test_find_checkpoint_names_the_missing_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"checkpoint=.*none: file or folder not found"):
        find_checkpoint(tmp_path / "none")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigurationError, match=r"no frames_\*\.safetensors in .*checkpoints"):
        find_checkpoint(tmp_path)


def test_lookup_does_not_write(tmp_path: Path) -> None:
    stray = tmp_path / ".frames_000000000100.safetensors.1.partial"
    stray.write_bytes(b"a run still at work")
    folder = CheckpointFolder(tmp_path)
    assert folder.latest() is None
    assert folder.best() is None
    assert stray.exists()
    assert not (tmp_path / "none").exists()
    assert CheckpointFolder(tmp_path / "none").latest() is None
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_made_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="cannot write"):
        CheckpointFolder(tmp_path / "file" / "checkpoints").prepare(1, {})()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_killed_while_writing_loses_no_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.prepare(100, {"frames": 100})()

    def die_while_writing() -> None:
        mock.patch.object(os, "fsync", side_effect=lambda _: os._exit(9)).start()
        folder.prepare(200, {"a": torch.zeros(1000)})()

    killed = forked(die_while_writing)
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    assert len(names(tmp_path)) == 2  # the checkpoint and the partial file of the killed run
    latest = find_checkpoint(tmp_path)
    assert load_state(latest) == {"frames": 100}
    folder.prepare(200, {"frames": 200})()
    assert names(tmp_path) == ["frames_000000000100.safetensors", "frames_000000000200.safetensors"]
