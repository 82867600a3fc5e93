"""Calls of the command line program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers import run


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run the command line program in `folder`, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trainers.run", *arguments])
    try:
        return run.main()
    except SystemExit as end:
        return int(end.code or 0)
