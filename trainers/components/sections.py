"""Sections of the configuration, and their entries beside the settings of a class."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torchrl_gpu.arguments import CheckedFields, annotations_of, constructor_of, parameters_of

TARGET = "_target_"

# Base classes of the classes of each group, by dotted path, in the order of their checks: schedules
# of an agent refer to the length of the run.
BASES = {
    "trainer": ("trainers.training.trainer.TorchRLTrainer",),
    "agent": ("agents.base.Agent", "agents.untrained.UntrainedAgent"),
    "env": ("torchrl.envs.EnvBase",),
    "collectors": ("trainers.collecting.collectors.Collectors",),
}

_TRAINING = ("train", "tune")

# Classes and functions that are the schemas of sections without `_target_`, by dotted path.
SECTIONS = {
    "evaluation": "trainers.evaluation.evaluator.Evaluator",
    "demo": "trainers.evaluation.film.film",
    "record": "trainers.evaluation.record.record",
    "tune": "trainers.tuning.options.Tuning",
}

# Modes that use a section or a general setting, for those that not every mode uses.
MODES = {
    **dict.fromkeys(("collectors", "precision", "compile", "graphs", "products"), _TRAINING),
    "evaluation": (*_TRAINING, "eval", "record", "export"),
    "demo": ("demo",),
    "record": ("record",),
    "tune": ("tune",),
}

# Arguments that the program itself passes; settings must not contain them.
PROVIDED = {
    "agent": ("observation_spec", "action_spec", "device"),
    "env": ("mode", "device", "seed"),
    "trainer": (
        *("env", "agent", "folder", "evaluation_env", "config", "seed", "execution", "callbacks"),
    ),
    "evaluation": ("env", "limit"),
    "demo": ("env", "policy", "device", "seed", "folder"),
    "record": ("env", "policy", "device", "seed", "folder", "progress"),
    "tune": (),
}

AUTO = "auto"

# Settings that take `auto`, by group.
AUTOMATIC = {"env": "num_envs", "agent": "batch_size"}


def full_name(choice: str, name: Any) -> str:
    """Return the name of an environment; one of many has its own `name`, as in gym/CartPole-v1."""
    names = str(name or "").rpartition(":")[2].split("/")
    safe = [re.sub(r"[^\w.-]+", "_", each) for each in names if each.strip(".")]
    return "/".join([choice, *safe])


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted name; an empty mapping is a leaf."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        leaves |= flat(value, f"{path}.") if value and isinstance(value, dict) else {path: value}
    return leaves


def take_automatic(sections: dict[str, Any]) -> set[str]:
    """Remove the settings that are `auto` from sections, in place, and return their groups."""
    groups = set()
    for group, name in AUTOMATIC.items():
        section = sections.get(group)
        if isinstance(section, dict) and section.get(name) == AUTO:
            del section[name]
            groups.add(group)
    return groups


def parts_of(target: Callable[..., Any]) -> dict[str, tuple[type, type]]:
    """Return the settings of a class that are components themselves.

    Returns:
        By name of the setting: its default class and the base class of all choices.
    """
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(target).items()
        if isinstance(parameter.default, CheckedFields)
    }
    hints = annotations_of(constructor_of(target), include_extras=False) if defaults else {}
    return {name: (type(default), hints[name]) for name, default in defaults.items()}
