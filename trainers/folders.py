"""Where the program writes, and whether it can."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.errors import ConfigurationError
from trainers.settings import Settings


def run_folder(settings: Settings) -> Path:
    """Return the folder of a run: the checkpoint's if that is the newest there, else a new one."""
    checkpoint = settings.checkpoint
    if checkpoint is not None and checkpoint == CheckpointFolder(checkpoint.parent).latest():
        return checkpoint.parent.parent
    started = time.strftime("%Y%m%d_%H%M%S")
    folder = _runs_of_pair(settings) / started
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{started}_{number}")
    return folder


def results_folder(settings: Settings) -> Path:
    """Return the folder for what is made from a checkpoint: its run, else one among the runs.

    A policy file lies in no run, and the run of someone else may not be written to.
    """
    checkpoint = settings.checkpoint
    assert checkpoint is not None
    run = checkpoint.parent.parent
    is_in_run = checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file()
    if is_in_run and os.access(run, os.W_OK):
        return run
    return _runs_of_pair(settings) / (run.name if is_in_run else checkpoint.stem)


def check_writable(folder: Path) -> None:
    """Find out before anything is built whether a folder can be made and written to.

    Raises:
        ConfigurationError: there is no right or no space to write there.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(2**20))
    except OSError as error:
        raise ConfigurationError(f"cannot write to {existing}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a file in one piece; its folder is made.

    Raises:
        ConfigurationError: the folder cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {path.parent}: {error.strerror}") from None
    with atomic_file(path) as file:
        file.write(text.encode())


def _runs_of_pair(settings: Settings) -> Path:
    choices = settings.config["choices"]
    return settings.runs / choices["env"] / choices["agent"]
