"""A preset of settings: the file that `experiment=` chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.checkpoints.files import write_text
from trainers.command_line.schema import GeneralSettings
from trainers.command_line.settings import Settings
from trainers.components.choices import SAVED_GROUPS, choices_of
from trainers.components.component import Component
from trainers.components.sections import TARGET

# Name of the preset, and the folder of the study that has it.
NAME, FOLDER = "tuned", "presets"


def write_preset(study: Path, settings: Settings, comment: str) -> list[str]:
    """Write the settings that differ from the defaults as a preset.

    Args:
        study: folder of the study.
        settings: settings of a training.
        comment: line of text about the preset.

    Returns:
        The arguments of the program that train with it.
    """
    choices = settings.config["choices"]
    defaults: list[Any] = []
    tree: dict[str, Any] = {
        name: value
        for name, value in settings.general.saved().items()
        if name != "seed" and value != getattr(GeneralSettings(), name)
    }
    for group in SAVED_GROUPS:
        component: Component = getattr(settings, group)
        section = _differing(component)
        if group != "trainer" and choices[group] in choices_of(group):
            defaults.append({f"override /{group}": choices[group]})
        elif group != "trainer":
            section = {TARGET: component.path, **section}
        if section:
            tree[group] = section
    whole = OmegaConf.to_yaml(OmegaConf.create({"defaults": [*defaults, "_self_"], **tree}))
    folder = study / FOLDER
    path = folder / "experiment" / f"{NAME}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"# @package _global_\n# {comment}\n{whole}")
    return [f"experiment={NAME}", f"hydra.searchpath=[file://{folder}]"]


def _differing(component: Component) -> dict[str, Any]:
    """Return the settings of a component that differ from the defaults, as plain values."""
    section: dict[str, Any] = {}
    parameters = parameters_of(component.target)
    for name, value in component.settings.items():
        default = parameters[name].default if name in parameters else None
        if isinstance(value, Component):
            part = _differing(value)
            if value.target is not type(default):
                part = {TARGET: value.path, **part}
            if part:
                section[name] = part
        elif value != default and _list_of(value) != _list_of(default):
            section[name] = _list_of(value)
    return section


def _list_of(value: Any) -> Any:
    """Return a tuple as a list, as YAML has it, and other values as they are."""
    return list(value) if isinstance(value, tuple) else value
