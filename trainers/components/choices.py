"""Choices of each config group by name, and the classes that they refer to."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torchrl.envs import EnvBase

import configs
from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.errors import ConfigurationError
from trainers.training.trainer import TorchRLTrainer

_KINDS: dict[str, tuple[type, ...]] = {
    "agent": (Agent, UntrainedAgent),
    "env": (EnvBase,),
    "trainer": (TorchRLTrainer,),
}
GROUPS = tuple(_KINDS)
CUSTOM = "custom"  # the choice of a config group that stands for the user's own class


def choices_of(group: str) -> list[str]:
    """Return the sorted names of all choices of a config group.

    A choice in a folder has the form `folder/name`. Files with a leading underscore are no choices.
    """
    folder = Path(configs.__file__).parent / group
    files = folder.rglob("[!_]*.yaml")
    return sorted({f.relative_to(folder).with_suffix("").as_posix() for f in files} - {CUSTOM})


def learning_agents() -> dict[str, type[Agent]]:
    """Return the classes of all agents that learn, by the name of the choice."""
    classes = {name: class_of("agent", name) for name in choices_of("agent")}
    return {name: agent for name, agent in classes.items() if issubclass(agent, Agent)}


def class_of(group: str, choice: str) -> type:
    """Return the class of a choice of a config group.

    Raises:
        ConfigurationError: the class cannot be imported.
    """
    section = OmegaConf.load(Path(configs.__file__).parent / group / f"{choice}.yaml")
    return find_class(group, OmegaConf.select(section, "_target_"))


def find_class(group: str, path: Any, kind: type | None = None) -> type:
    """Import the class of a group by its dotted path.

    Args:
        group: config group, or name of a setting that is a component.
        path: dotted path of the class, `package.Class`.
        kind: required base class; None for the base classes of the config group.

    Raises:
        ConfigurationError: the class cannot be imported, is abstract, or does not derive from the
            base class.
    """
    module, _, name = str(path).rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{group}._target_={path}: {error}") from None
    kinds = _KINDS[group] if kind is None else (kind,)
    if not (isinstance(target, type) and issubclass(target, kinds)):
        bases = " or ".join(f"{base.__module__}.{base.__name__}" for base in kinds)
        raise ConfigurationError(f"{group}._target_={path}: it has to be a subclass of {bases}")
    if inspect.isabstract(target):
        methods: frozenset[str] = target.__abstractmethods__  # type: ignore[attr-defined]
        missing = ", ".join(sorted(methods))
        raise ConfigurationError(f"{group}._target_={path}: the class lacks {missing}")
    return target
