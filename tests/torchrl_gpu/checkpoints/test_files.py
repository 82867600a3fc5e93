"""New files, of which none is given twice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from torchrl_gpu.checkpoints.files import new_file, write_text
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
