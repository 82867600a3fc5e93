"""Calls of the command line program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import open_dict

from trainers import run
from trainers.command_line import complete
from trainers.registry import CUSTOM
from trainers.settings import Settings, check


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run the command line program in `folder`, and return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trainers.run", *arguments])
    try:
        return run.main()
    except SystemExit as end:
        return int(end.code or 0)


def settings_of(*arguments: str) -> tuple[Settings, str | None]:
    """Return the checked settings of a command, and its experiment, as the program finds them."""
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("config", complete([*arguments]), return_hydra_config=True)
    choices = config.hydra.runtime.choices
    overrides = list(config.hydra.overrides.task)
    with open_dict(config):
        del config["hydra"]
    settings = check(config, {g: None if c == CUSTOM else c for g, c in choices.items()}, overrides)
    return settings, choices.get("experiment")
