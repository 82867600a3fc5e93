"""New files, of which none is given twice, and folders that appear when they are complete."""

import errno
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Barrier

import pytest

from torchrl_gpu.checkpoints.files import atomic_folder, new_file, write_text
from torchrl_gpu.errors import ConfigurationError


def test_files_that_are_created_at_once_have_separate_names(tmp_path: Path) -> None:
    count = 8
    together = Barrier(count)

    def write(number: int) -> Path:
        together.wait()
        with new_file(tmp_path / "evaluations" / "now.json") as path:
            together.wait()  # as long as an evaluation takes to be written
            write_text(path, str(number))
        return path

    with ThreadPoolExecutor(count) as pool:
        written = list(pool.map(write, range(count)))
    assert [path.read_text() for path in written] == list(map(str, range(count)))
    names = {"now.json", *(f"now_{number}.json" for number in range(2, count + 1))}
    assert {path.name for path in (tmp_path / "evaluations").iterdir()} == names


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[PermissionError]:
    """Return the errors of the next moves of a file or folder, of which three are tried."""
    errors: list[PermissionError] = []
    replace = Path.replace

    def refuse(partial: Path, target: Path) -> Path:
        if errors:
            raise errors.pop()
        return replace(partial, target)

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("torchrl_gpu.checkpoints.files._ATTEMPTS", 3)
    monkeypatch.setattr("torchrl_gpu.checkpoints.files._SECONDS_BETWEEN", 0.0)
    return errors


@pytest.mark.parametrize(("times", "content"), [(2, "new"), (3, "old")])
def test_a_file_that_windows_lets_others_read_is_replaced_a_moment_later(
    times: int, content: str, tmp_path: Path, refusals: list[PermissionError]
) -> None:
    path = tmp_path / "best.json"
    path.write_text("old")
    refusals += [PermissionError()] * times
    is_refused = pytest.raises(ConfigurationError, match="cannot write")
    with is_refused if content == "old" else nullcontext():
        write_text(path, "new")
    assert path.read_text() == content
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_that_windows_lets_others_read_has_its_name_a_moment_later(
    tmp_path: Path, refusals: list[PermissionError]
) -> None:
    with atomic_folder(tmp_path / "export") as partial:
        (partial / "policy.onnx").touch()
        refusals += [PermissionError()] * 2
    assert [*tmp_path.rglob("*")] == [tmp_path / "export", tmp_path / "export" / "policy.onnx"]


def test_a_file_that_stays_empty_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), new_file(tmp_path / "film.mp4"):
        raise ValueError("broken")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["file", "x" * 300])
def test_a_file_that_cannot_be_created_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match="cannot write"),
        new_file(tmp_path / folder / "film.mp4"),
    ):
        pass


@pytest.mark.parametrize("folder", [".", "new"])
def test_a_folder_is_not_replaced_by_a_file(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "new").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigurationError, match=rf"^cannot write {re.escape(folder)}: "):
        write_text(Path(folder), "text")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "new"]


@pytest.mark.parametrize("create", [new_file, atomic_folder])
@pytest.mark.parametrize("exists", [False, True])
def test_folders_that_cannot_be_created_leave_none_behind(
    create: Callable[[Path], AbstractContextManager[Path]], exists: bool, tmp_path: Path
) -> None:
    if exists:
        (tmp_path / "new").mkdir()
    too_long = tmp_path / "new" / ("long" * 100) / "film.mp4"
    with pytest.raises(ConfigurationError, match=r"^cannot write .*: File name too long$"):
        create(too_long).__enter__()
    assert [path.name for path in tmp_path.rglob("*")] == (["new"] if exists else [])


def test_a_folder_appears_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("exports/policy")
    with atomic_folder(path) as partial:
        assert partial.is_absolute()
        (partial / "file").touch()
        assert not path.exists()
    assert [found.name for found in path.iterdir()] == ["file"]
    assert list(path.parent.iterdir()) == [path]


def failing_folder(path: Path, error: Exception) -> None:
    with atomic_folder(path) as partial:
        (partial / "file").touch()
        raise error


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "exports" / "policy"
    with pytest.raises(ValueError, match="broken"):
        failing_folder(path, ValueError("broken"))
    with pytest.raises(ConfigurationError, match=r"^cannot write .*/exports/policy: disk full$"):
        failing_folder(path, OSError(errno.ENOSPC, "disk full"))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write"), atomic_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
