"""What there is to choose from, by name: the files of the config groups and their classes."""

from __future__ import annotations

import importlib
import inspect
from importlib import resources
from typing import Any

from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from agents.base import Agent
from torchrl_gpu.errors import ConfigurationError
from trainers.trainer import TorchRLTrainer

_KINDS: dict[str, type] = {"agent": Agent, "env": EnvBase, "trainer": TorchRLTrainer}
GROUPS = tuple(_KINDS)
CUSTOM = "custom"  # stands in a config group for a class of the user's own


def choices_of(group: str) -> list[str]:
    """Return what can be chosen for a config group, by name."""
    files = [file.name for file in (resources.files("configs") / group).iterdir()]
    names = {file.removesuffix(".yaml") for file in files if file.endswith(".yaml")}
    return sorted(names - {CUSTOM})


def class_of(group: str, choice: str) -> type:
    """Return the class that a choice of a config group names.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    section = OmegaConf.load(str(resources.files("configs") / group / f"{choice}.yaml"))
    return find_class(group, OmegaConf.select(section, "_target_"))


def find_class(group: str, path: Any, kind: type | None = None) -> type:
    """Import the class of a group by its dotted path.

    Args:
        group: the config group, or the name of a setting that is a component.
        path: `package.Class`.
        kind: the class that it has to derive from; None for that of the config group.

    Raises:
        ConfigurationError: it cannot be imported, or is not of the kind that the group needs.
    """
    module, _, name = str(path).rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{group}._target_={path}: {error}") from None
    kind = _KINDS[group] if kind is None else kind
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ConfigurationError(
            f"{group}._target_={path}: it has to be a subclass of {kind.__module__}.{kind.__name__}"
        )
    if inspect.isabstract(target):
        methods: frozenset[str] = target.__abstractmethods__  # type: ignore[attr-defined]
        missing = ", ".join(sorted(methods))
        raise ConfigurationError(f"{group}._target_={path}: the class lacks {missing}")
    return target
