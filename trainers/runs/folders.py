"""Output folders of the program, and checks that they are writable."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.files import atomic_file, unused
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import Settings


def run_folder(settings: Settings) -> Path:
    """Return the folder of a run.

    It is the folder of `checkpoint` if that is the newest checkpoint there, otherwise a new one.
    """
    checkpoint = settings.checkpoint
    if checkpoint is not None and checkpoint == CheckpointFolder(checkpoint.parent).latest():
        return checkpoint.parent.parent
    return unused(_runs_of_pair(settings) / time.strftime("%Y%m%d_%H%M%S"))


def results_folder(settings: Settings) -> Path:
    """Return the folder for evaluations and films.

    It is the run folder of the checkpoint. A policy file, which belongs to no run, and a read-only
    run have a folder below `runs` instead: `<env>/<agent>/<name>`. An agent that does not learn,
    and therefore has neither runs nor checkpoints, has `<env>/<agent>`.
    """
    checkpoint = settings.checkpoint
    if checkpoint is None:
        return _runs_of_pair(settings)
    run = checkpoint.parent.parent
    is_in_run = checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file()
    if is_in_run and os.access(run, os.W_OK):
        return run
    return _runs_of_pair(settings) / (run.name if is_in_run else checkpoint.stem)


def check_writable(folder: Path) -> None:
    """Check, before anything is built, that a folder can be created and written to.

    Raises:
        ConfigurationError: the permission or the space to write is missing.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(2**20))
    except OSError as error:
        raise ConfigurationError(f"cannot write to {existing}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a text file atomically, and create its folder.

    Raises:
        ConfigurationError: the folder cannot be created or the file not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create {path.parent}: {error.strerror}") from None
    with atomic_file(path) as file:
        file.write(text.encode())


def _runs_of_pair(settings: Settings) -> Path:
    choices = settings.config["choices"]
    return settings.runs / choices["env"] / choices["agent"]
