"""Files that are written whole, and paths that overwrite none."""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torchrl_gpu.errors import ConfigurationError

_log = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"

# Errors of file systems, such as some network drives, that cannot sync a folder. PostgreSQL ignores
# the first two as well (`fsync_fname_ext`).
_CANNOT_SYNC_FOLDERS = {errno.EBADF, errno.EINVAL, errno.ENOTSUP}


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an exception.

    Args:
        path: file to replace or create; its folder is created.

    Yields:
        The temporary file, open for writing bytes.

    Raises:
        ConfigurationError: the file cannot be written. After this or any other exception in the
            block, `path` is unchanged and the temporary file is deleted.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


def reason(error: OSError) -> str:
    """Return the operating system's error message."""
    return error.strerror or str(error)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable across power cuts, if the system supports it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC_FOLDERS:
                raise
        finally:
            os.close(descriptor)


def discard(path: Path) -> None:
    """Delete a file if it exists; log a warning if it cannot be deleted."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, reason(error))


def unused(path: Path) -> Path:
    """Return the path, or if it exists, the first free one of `name_2`, `name_3` and so on."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    return free
