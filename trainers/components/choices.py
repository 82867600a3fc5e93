"""Choices of each config group by name, and the classes that they refer to."""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import configs
from torchrl_gpu.errors import ConfigurationError

if TYPE_CHECKING:
    from agents.base import Agent

GROUPS = ("agent", "env", "trainer")

# The setting of Hydra that names folders of the user with further choices and presets.
SEARCH_PATH = "hydra.searchpath"

_CONFIGS = Path(configs.__file__).parent


def choices_of(group: str, *folders: Path) -> list[str]:
    """Return the sorted names of all choices of a config group.

    A choice in a folder has the form `folder/name`. Files with a leading underscore are not
    choices.

    Args:
        group: name of the group, as in `agent`.
        folders: configuration folders of the user, searched besides our own.
    """
    groups = [folder / group for folder in (_CONFIGS, *folders)]
    files = [(g, file) for g in groups for file in g.rglob("[!_]*.yaml")]
    return sorted({file.relative_to(g).with_suffix("").as_posix() for g, file in files})


def folders_of(settings: Mapping[str, Any]) -> list[Path]:
    """Return the folders of the user, from `hydra.searchpath=[file:///folder, pkg://package]`."""
    entries = [text.strip(" '\"") for text in settings.get(SEARCH_PATH, "").strip("[]").split(",")]
    return [
        Path(str(importlib.resources.files(entry.removeprefix("pkg://"))))
        if entry.startswith("pkg://")
        else Path(entry.removeprefix("file://"))
        for entry in entries
        if entry
    ]


def check_choices(arguments: Iterable[str]) -> None:
    """Refuse an unknown agent, environment, trainer or experiment.

    This needs only the names of files, so that a mistyped name is refused before torch is imported.

    Args:
        arguments: settings as typed.

    Raises:
        ConfigurationError: a choice is unknown.
    """
    typed = {name: text for name, _, text in (argument.partition("=") for argument in arguments)}
    for group in (*GROUPS, "experiment"):
        known = choices_of(group, *folders_of(typed))
        choice = typed.get(group, "null")
        if choice not in (*known, "null"):
            raise ConfigurationError(f"unknown {group} {choice}; choose one of: {', '.join(known)}")


def learning_agents() -> dict[str, type[Agent]]:
    """Return the classes of all agents that learn, by the name of the choice."""
    from agents.base import Agent  # imports torch, which the names of choices do not need

    classes = {name: class_of("agent", name) for name in choices_of("agent")}
    return {name: agent for name, agent in classes.items() if issubclass(agent, Agent)}


def class_of(group: str, choice: str) -> type:
    """Return the class of a choice of a config group."""
    from omegaconf import OmegaConf

    section = OmegaConf.load(_CONFIGS / group / f"{choice}.yaml")
    module, _, name = OmegaConf.select(section, "_target_").rpartition(".")
    target: type = getattr(importlib.import_module(module), name)
    return target
