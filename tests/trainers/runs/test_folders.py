"""Folders of runs: each belongs to one process at a time."""

import errno
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from unittest import mock

import pytest
from omegaconf import OmegaConf

from tests.helpers.files import names
from torchrl_gpu.errors import ConfigurationError
from trainers.runs.folders import goes_on, newest_run, results_folder, run_folder


def checkpoint_in(folder: Path, frames: int = 100) -> Path:
    """Return an empty checkpoint in a run folder."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").touch()
    path = folder / "checkpoints" / f"frames_{frames:012d}.safetensors"
    path.touch()
    return path


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    count = 8
    together = Barrier(count)

    def begin(_: int) -> Path:
        together.wait()
        with run_folder(tmp_path / "runs", None) as folder:
            (folder / "config.yaml").touch()
            together.wait()
            return folder

    with ThreadPoolExecutor(count) as pool:
        folders = set(pool.map(begin, range(count)))
    assert len(folders) == count
    assert {folder.parent for folder in folders} == {tmp_path / "runs"}


def test_run_in_use_is_not_resumed(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path / "run")
    with (
        run_folder(tmp_path / "runs", checkpoint) as folder,
        pytest.raises(ConfigurationError, match=f"^checkpoint={folder}: in use by another run; "),
        ThreadPoolExecutor() as pool,
    ):
        pool.submit(enter, tmp_path / "runs", checkpoint).result()
    assert enter(tmp_path / "runs", checkpoint) == tmp_path / "run"


def enter(runs: Path, checkpoint: Path | None) -> Path:
    with run_folder(runs, checkpoint) as folder:
        return folder


def test_checkpoint_that_is_no_longer_the_newest_is_refused_once_the_run_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_in(tmp_path / "run")

    @contextmanager
    def locked(folder: Path) -> Iterator[None]:
        checkpoint_in(folder, frames=200)  # by the process that had the lock
        yield

    monkeypatch.setattr("trainers.runs.folders._locked", locked)
    with pytest.raises(ConfigurationError, match="another process has gone on with the run"):
        enter(tmp_path / "runs", checkpoint)


def test_what_a_killed_process_left_unfinished_is_deleted(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path / "run")
    for name in (".metrics.csv.123.partial", ".config.yaml.123.partial"):
        (tmp_path / "run" / name).touch()
    enter(tmp_path / "runs", checkpoint)
    assert names(tmp_path / "run") == [".lock", "checkpoints", "config.yaml"]


def test_newest_run_of_the_same_settings_is_found_by_the_time_it_began(tmp_path: Path) -> None:
    config = {"seed": 3, "agent": {"gamma": 1e-5, "sizes": (64, 64), "rate": "${agent.gamma}"}}

    def begin(name: str, text: str) -> Path:
        run = checkpoint_in(tmp_path / name).parent.parent
        (run / "config.yaml").write_text(text)
        return run

    same = OmegaConf.to_yaml({**config, "device": "cuda:1", "versions": {}})
    assert newest_run(tmp_path / "none", config) is None
    begin("20261121_115252_2", same)
    newest = begin("20261121_115252_10", same)
    begin("copied", same)
    begin("20261122_115252", OmegaConf.to_yaml({**config, "seed": 4}))
    begin("20261123_115252", "damaged: [")
    begin("20261124_115252", "3")
    shutil.rmtree(begin("20261125_115252", same) / "checkpoints")
    assert newest_run(tmp_path, config) == newest
    assert newest_run(tmp_path, {**config, "seed": 5}) is None
    assert newest_run(tmp_path, {**config, "agent": {}}) is None
    assert newest_run(tmp_path, {**config, "env": {}}) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_process_leaves_its_run_free(tmp_path: Path) -> None:
    """Even if a worker that it had forked lives on."""
    checkpoint = checkpoint_in(tmp_path / "run")
    read, write = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        with run_folder(tmp_path / "runs", checkpoint):
            worker = os.fork()
            if worker:
                os.write(write, str(worker).encode())
            time.sleep(60)
            os._exit(0)
    worker = int(os.read(read, 100))
    try:
        with pytest.raises(ConfigurationError, match="in use"):
            enter(tmp_path / "runs", checkpoint)
        os.kill(trainer, signal.SIGKILL)
        os.waitpid(trainer, 0)
        assert enter(tmp_path / "runs", checkpoint) == tmp_path / "run"
    finally:
        os.kill(worker, signal.SIGKILL)


def test_only_the_newest_checkpoint_goes_on_in_its_run(tmp_path: Path) -> None:
    older = checkpoint_in(tmp_path / "run", frames=50)
    assert goes_on(older)
    newest = checkpoint_in(tmp_path / "run")
    assert not goes_on(older)
    assert goes_on(newest)
    assert enter(tmp_path / "runs", newest) == tmp_path / "run"


def test_copied_checkpoint_writes_nothing_around_it(tmp_path: Path) -> None:
    copied = tmp_path / "kept" / "best" / "frames_000000000100.safetensors"
    copied.parent.mkdir(parents=True)
    shutil.copy(checkpoint_in(tmp_path / "run"), copied)
    assert not goes_on(copied)
    assert results_folder(tmp_path / "runs", copied) == tmp_path / "runs" / copied.stem


def test_results_of_an_exported_policy_stand_below_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = tmp_path / "policy-v1.2"
    exported.mkdir()
    monkeypatch.chdir(exported)
    for folder in (exported, Path(), exported / "..", Path("..") / exported.name):
        name = tmp_path.name if folder.name == ".." else exported.name
        assert results_folder(tmp_path / "runs", folder) == tmp_path / "runs" / name


def test_copied_run_goes_on_in_the_copy(tmp_path: Path) -> None:
    checkpoint_in(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copied = checkpoint_in(tmp_path / "copy")
    assert goes_on(copied)
    assert enter(tmp_path / "runs", copied) == tmp_path / "copy"
    assert results_folder(tmp_path / "runs", copied) == tmp_path / "copy"


def test_a_run_that_cannot_be_written_to_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_in(tmp_path / "run")
    error = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(tempfile, "TemporaryFile", mock.Mock(side_effect=error))
    with pytest.raises(ConfigurationError, match=r"Read-only file system; copy the run folder"):
        enter(tmp_path / "runs", checkpoint)
    with pytest.raises(ConfigurationError, match=r"system; name another folder with runs=FOLDER"):
        enter(tmp_path / "runs", None)
    assert names(tmp_path) == ["run"]


def test_run_that_writes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert not enter(tmp_path / "runs" / "sea" / "sac", None).exists()
    assert names(tmp_path / "runs") == []
