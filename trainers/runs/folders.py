"""Output folders of the program, and checks that they are writable."""

import os
import tempfile
import time
from pathlib import Path

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.files import unused
from torchrl_gpu.errors import ConfigurationError


def run_folder(runs: Path, checkpoint: Path | None) -> Path:
    """Return the folder of a run.

    It is the folder of `checkpoint` if that is the newest checkpoint there, otherwise a new one.

    Args:
        runs: folder of all runs of the agent in the environment.
        checkpoint: checkpoint to resume; None for a run from scratch.
    """
    if checkpoint is not None and checkpoint == CheckpointFolder(checkpoint.parent).latest():
        return checkpoint.parent.parent
    return unused(runs / time.strftime("%Y%m%d_%H%M%S"))


def results_folder(runs: Path, checkpoint: Path | None) -> Path:
    """Return the folder for evaluations and films.

    It is the run folder of the checkpoint. A policy file, which belongs to no run, and a read-only
    run have a folder below `runs` instead; an agent that does not learn has `runs` itself.

    Args:
        runs: see `run_folder`.
        checkpoint: checkpoint or policy file; None for an agent that does not learn.
    """
    if checkpoint is None:
        return runs
    run = checkpoint.parent.parent
    is_in_run = checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file()
    if is_in_run and os.access(run, os.W_OK):
        return run
    return runs / (run.name if is_in_run else checkpoint.stem)


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
