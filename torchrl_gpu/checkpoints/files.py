"""Files that are written as a whole, and paths that do not exist yet."""

import contextlib
import errno
import itertools
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from torchrl_gpu.errors import ConfigurationError

_log = logging.getLogger(__name__)

PARTIAL_FILES = ".*.partial*"  # pattern of temporary files

# Errors of file systems, such as some network drives, that cannot sync a folder. PostgreSQL ignores
# the first two as well (`fsync_fname_ext`).
_CANNOT_SYNC_FOLDERS = {errno.EBADF, errno.EINVAL, errno.ENOTSUP}

# Windows refuses to move or replace a file while another program reads it, as a viewer or a virus
# scanner, and to move its folder.
_ATTEMPTS: Final = 40 if sys.platform == "win32" else 1
_SECONDS_BETWEEN: Final = 0.05


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an exception.

    The folder of `path` is created.

    Raises:
        ConfigurationError: the file cannot be written. After this or any other exception in the
            block, `path` is unchanged and the temporary file is deleted.
    """
    path = Path(path)
    with made_folders(path):
        with partial_file(path) as partial, partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)


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


def numbered(path: Path) -> Iterator[Path]:
    """Yield a path, and after it `name_2`, `name_3` and so on."""
    yield path
    for number in itertools.count(2):
        yield path.with_stem(f"{path.stem}_{number}")


@contextlib.contextmanager
def made_folders(path: Path) -> Iterator[None]:
    """Create the folders above a path; those that are still empty after the block are deleted.

    Raises:
        ConfigurationError: a folder cannot be created, or the block raised an OSError.
    """
    missing: list[Path] = []
    try:
        missing += (folder for folder in path.parents if not folder.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder, which becomes `path` when the block ends without an exception.

    Yields its absolute path. The folders above `path` are created; after an exception, those that
    are still empty are deleted.

    Raises:
        ConfigurationError: the folder cannot be written, or `path` exists and is not empty.
    """
    partial = path.absolute().with_name(f".{path.name}.{os.getpid()}.partial")
    with made_folders(path):
        try:
            partial.mkdir()
            yield partial
            _replace(path, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` if the block ends without an error.

    It has the suffix of `path`, for libraries that choose the format by it.
    """
    partial = path.absolute().with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        _replace(path, partial)
    finally:
        partial.unlink(missing_ok=True)


def _replace(path: Path, partial: Path) -> None:
    """Give a complete file or folder its name."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(PermissionError):
            partial.replace(path)
            return
        time.sleep(_SECONDS_BETWEEN)
    partial.replace(path)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Create a file, or if it exists the first `numbered` one that does not, in its folder.

    No other process gets the same file. It is deleted if it is still empty after the block, with
    the folders that were created for it.

    Raises:
        ConfigurationError: the file cannot be created, or the block raised an OSError.
    """
    with made_folders(path):
        for free in numbered(path):
            with contextlib.suppress(FileExistsError):
                free.touch(exist_ok=False)
                break
        try:
            yield free
        finally:
            with contextlib.suppress(OSError):
                if not free.stat().st_size:
                    free.unlink()
