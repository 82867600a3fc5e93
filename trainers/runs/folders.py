"""Folders of the program: that of a run, which one process holds at a time, and that of results."""

import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, shares_of
from torchrl_gpu.checkpoints.files import PARTIAL_FILES, discard, numbered, reason
from torchrl_gpu.errors import ConfigurationError

# The operating system holds the lock on this file, so that it ends with its process.
_LOCK = ".lock"

# Time at which a run began, and number of the run among those that began at once.
_NAME_OF_RUN = re.compile(r"\d{8}_\d{6}(_\d+)?")

# Advice where the folder of a setting cannot be written to.
_HINTS = {
    "runs": "; name another folder with runs=FOLDER",
    "checkpoint": "; copy the run folder, and name the copy",
}

_logger = logging.getLogger(__name__)


def goes_on(checkpoint: Path) -> bool:
    """Return whether a checkpoint is the newest one of its run, so that the run can go on.

    A file that was copied out of its run, or an older one, begins a new run.
    """
    return run_of(checkpoint) is not None and _is_newest(checkpoint)


def newest_run(runs: Path, config: Mapping[str, Any], automatic: Iterable[str] = ()) -> Path | None:
    """Return the newest run with the same settings that has a checkpoint; None if there is none.

    Args:
        runs: folder of all runs of the agent in the environment.
        config: settings that are saved with a run, as plain values.
        automatic: names of those that depend on the machine, as in `env.num_envs`.

    Raises:
        ConfigurationError: another process trains such a run.
    """
    wanted = OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(config)))
    names = [run.name for run in runs.glob("*") if _NAME_OF_RUN.fullmatch(run.name)]
    for name in sorted(names, key=lambda name: [*map(int, name.split("_"))], reverse=True):
        run = runs / name
        if not _has_settings(run, wanted, automatic):
            continue
        with _locked(run, f"resume=auto: {run}"):
            pass
        if CheckpointFolder(run / "checkpoints").paths():
            return run
    return None


def trained_since(run: Path, moment: float) -> bool:
    """Return whether the training of a run has begun, or gone on, after a moment of `time.time`."""
    return (run / "config.yaml").stat().st_mtime >= moment


def _has_settings(run: Path, wanted: Any, automatic: Iterable[str]) -> bool:
    """Return whether a run has been recorded with the wanted settings, plain values."""
    try:
        recorded: Any = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))
        recorded = {name: recorded[name] for name in wanted}
        for each in (recorded, wanted):
            for section, _, name in (name.partition(".") for name in automatic):
                each[section].pop(name, None)
    except Exception:  # the file is missing, damaged, or not that of a run
        return False
    return recorded == wanted


@contextmanager
def run_folder(runs: Path, checkpoint: Path | None, damaged: Iterable[Path] = ()) -> Iterator[Path]:
    """Hold the folder of a run; no other call of this function can hold it during the block.

    A new folder is deleted again if nothing was written to it. Unfinished files of a killed process
    are deleted from an older one.

    Args:
        runs: folder of all runs of the agent in the environment, for a new folder.
        checkpoint: checkpoint of the run that goes on, see `goes_on`; None for a new folder.
        damaged: newer checkpoints of that run, which are renamed.

    Raises:
        ConfigurationError: the folder is in use or cannot be written to.
    """
    if checkpoint is not None:
        run = checkpoint.parent.parent
        check_writable(run, "checkpoint")
        with _locked(run):
            for leftover in run.glob(PARTIAL_FILES):
                discard(leftover)
            for path in filter(Path.exists, damaged):
                for each in (*shares_of(path), path):
                    kept = each.rename(each.with_suffix(".damaged"))
                _logger.warning("%s cannot be read; going on from %s", kept, checkpoint.name)
            if not _is_newest(checkpoint):  # it was, until the lock was free
                raise ConfigurationError(
                    f"checkpoint={checkpoint}: another process has gone on with the run; "
                    "repeat the command"
                )
            yield run
        return
    check_writable(runs, "runs")
    missing = [folder for folder in (runs, *runs.parents) if not folder.exists()]
    new = new_folder(runs)
    try:
        with _locked(new):
            yield new
    finally:
        with suppress(OSError):  # up to the first folder that another run writes to
            if {path.name for path in new.iterdir()} <= {_LOCK}:
                (new / _LOCK).unlink(missing_ok=True)
                for folder in (new, *missing):
                    folder.rmdir()


def results_folder(runs: Path, checkpoint: Path | None) -> Path:
    """Return the folder for evaluations, films and exported policies.

    It is the run folder of the checkpoint. A policy file, which belongs to no run, and a read-only
    run have a folder below `runs` instead; an agent that does not learn has `runs` itself.
    """
    if checkpoint is None:
        return runs
    if checkpoint.name in ("", ".."):
        checkpoint = checkpoint.resolve()
    if (run := run_of(checkpoint)) is not None:
        return run if os.access(run, os.W_OK) else runs / run.name
    return runs / (checkpoint.name if checkpoint.is_dir() else checkpoint.stem)


def check_writable(folder: Path, setting: str) -> None:
    """Refuse the folder of a setting that cannot be created or written to."""
    existing = folder
    try:
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(2**20))
    except OSError as error:
        hint = _HINTS.get(setting, "")
        raise ConfigurationError(
            f"{setting}: cannot write to {existing}: {error.strerror}{hint}"
        ) from None


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder of a checkpoint or exported policy; None for one outside of a run."""
    run = checkpoint.parent.parent
    is_in_run = checkpoint.parent.name in ("checkpoints", "exports")
    return run if is_in_run and (run / "config.yaml").is_file() else None


def _is_newest(checkpoint: Path) -> bool:
    return checkpoint == CheckpointFolder(checkpoint.parent).latest()


def new_folder(runs: Path) -> Path:
    """Make a folder named after the time, with a number where another run has begun at once."""
    for folder in numbered(runs / time.strftime("%Y%m%d_%H%M%S")):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(f"cannot create {folder}: {reason(error)}") from None
    return folder


@contextmanager
def _locked(folder: Path, named: str = "") -> Iterator[None]:
    try:
        lock = FileLock(folder / _LOCK)
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigurationError(
            f"{named or f'checkpoint={folder}'}: in use by another run; wait until it has ended"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot lock {folder}: {reason(error)}") from None
    try:
        yield
    finally:
        lock.release()
