"""What tests of written files share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrl_gpu.errors import ConfigurationError


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def one_line(caught: pytest.ExceptionInfo[ConfigurationError]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let the system refuse to write files of more than `size` bytes, as a full disk does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
