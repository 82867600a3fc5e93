"""The program, called as from a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers import run


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run the program as from a shell in `folder`, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trainers.run", *arguments])
    try:
        return run.main()
    except SystemExit as end:
        return int(end.code or 0)
