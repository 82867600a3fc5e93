"""Writing files so that nothing already there is ever lost."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torchrl_gpu.errors import ConfigurationError

_log = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends, and only then.

    Args:
        path: the file to replace or create; its folder exists.

    Yields:
        The new file, open for writing bytes.

    Raises:
        ConfigurationError: it cannot be written. After this or any other exception in the block,
            `path` is what it was before and the new file is gone.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def reason(error: OSError) -> str:
    """Return what the system says went wrong."""
    return error.strerror or str(error)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def discard(path: Path) -> None:
    """Delete a file if it is there; if it cannot be, say so and go on."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, reason(error))
