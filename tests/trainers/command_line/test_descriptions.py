"""Every setting that `--help` lists has a description."""

import inspect
import re
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from agents.modules.encoders import ObservationEncoderFactory
from torchrl_gpu.arguments import descriptions_of, parameters_of
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import GROUPS, choices_of, class_of
from trainers.components.sections import PROVIDED, SECTIONS

CHOICES = [(group, name) for group in GROUPS for name in choices_of(group)]
COMPONENTS: dict[str, tuple[str, Callable[..., Any]]] = {
    **{f"{group}={name}": (group, class_of(group, name)) for group, name in CHOICES},
    **{name: (name, resolve_name(path)) for name, path in SECTIONS.items()},
    "general": ("", GeneralSettings),
    "agent.encoder": ("agent.encoder", ObservationEncoderFactory),
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_setting_has_a_description(name: str) -> None:
    group, component = COMPONENTS[name]
    described = descriptions_of(component)
    for setting, parameter in parameters_of(component).items():
        hidden = setting in PROVIDED.get(group, ())
        if not hidden and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            assert described.get(setting), setting
            twice = re.search(r"at (most|least).{,9}, (at |\d)", described[setting])
            assert not twice, described[setting]


def test_help_says_what_is_special_about_a_shared_setting() -> None:
    sac = descriptions_of(class_of("agent", "sac"))
    assert sac["atoms"].endswith(", at least 2; used only if `critic` is `categorical`")
    fanuc = descriptions_of(class_of("env", "fanuc"))
    assert fanuc["max_episode_steps"].endswith("; a step lasts 1 / `control_rate`")
