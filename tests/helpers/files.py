"""Helpers for tests of files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes per file fail, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
