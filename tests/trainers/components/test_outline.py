"""Outlines agree with the classes that they are read from."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from torchrl_gpu.arguments import check_settings, descriptions_of, parameters_of
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.checking import check
from trainers.command_line.composition import compose, read_settings
from trainers.command_line.early import check_early
from trainers.components.choices import GROUPS, choices_of, path_of
from trainers.components.outline import outline_of
from trainers.components.sections import PROVIDED, SECTIONS, parts_of

PATHS = {f"{g}={name}": (g, path_of(g, name)) for g in GROUPS for name in choices_of(g)}
PATHS |= {name: (name, path) for name, path in SECTIONS.items()}
PATHS["encoder"] = ("", "agents.modules.encoders.ObservationEncoderFactory")
PATHS["general"] = ("", "trainers.command_line.schema.GeneralSettings")


def settings(group: str, component: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of a component, with the settings of its parts in place of defaults."""
    parts = {name: settings("", default) for name, (default, _) in parts_of(component).items()}
    parameters = {
        name: (parameter.kind, parameter.default)
        for name, parameter in parameters_of(component).items()
        if name not in PROVIDED.get(group, ())
    }
    return parameters | parts


@pytest.mark.parametrize("choice", PATHS)
def test_an_outline_has_the_settings_of_its_class(choice: str) -> None:
    group, path = PATHS[choice]
    outline, real = outline_of(path), resolve_name(path)
    assert outline is not None
    assert outline is not real
    assert outline.__name__ == real.__name__
    assert settings(group, outline) == settings(group, real)
    words = {name: descriptions_of(each) for name, each in (("a", outline), ("b", real))}
    hidden = PROVIDED.get(group, ())
    described = [
        {name: text for name, text in each.items() if name not in hidden} for each in words.values()
    ]
    assert described[0] == described[1]


@pytest.mark.parametrize("choice", PATHS)
def test_an_outline_checks_like_its_class(choice: str) -> None:
    """The texts of the errors are the same, and all defaults are valid."""
    group, path = PATHS[choice]
    outline, real = outline_of(path), resolve_name(path)
    assert outline is not None
    parts, provided = parts_of(real), PROVIDED.get(group, ())
    base = {"name": "CartPole-v1"} if path == "envs.gym.GymnasiumEnv" else {}

    def error_of(component: Callable[..., Any], **given: Any) -> str:
        try:
            check_settings(component, base | given, "group", provided, parts)
        except ConfigurationError as error:
            return str(error)
        return ""

    for name, parameter in parameters_of(real).items():
        if name in (*provided, *parts) or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for wrong in (None, -1, "many"):
            early = error_of(outline, **{name: wrong})
            # A check by a function of the class needs its import.
            assert early in ("", error_of(real, **{name: wrong}))
            if name == "num_envs" and wrong == "many":
                assert early.startswith("group.num_envs=many: input should be a valid integer")


@pytest.mark.parametrize(
    "path", ["pathlib.Path", "agents", "agents.nothing.SAC", "agents.sac.Nothing", "SAC", ""]
)
def test_other_code_has_no_outline(path: str) -> None:
    assert outline_of(path) is None


def test_outlines_are_read_without_torch() -> None:
    paths = [path for _, path in PATHS.values()]
    code = (
        "import sys; from trainers.components.outline import outline_of\n"
        f"assert all(outline_of(path) for path in {paths})\n"
        "assert not {'torch', 'numpy', 'gymnasium'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("agent=sac agent.learning_rate_end=0", "agent.learning_rate_frames: a schedule needs"),
        ("agent=ppo agent.entropy_coefficient_frames=9", "agent.entropy_coefficient_end and ag"),
        (
            "agent=ppo agent.target_kl=.1 agent.learning_rate_end=0 agent.learning_rate_frames=9",
            "agent.target_kl, agent.learning_rate_end: set one",
        ),
        ("agent=rainbow agent.value_max=-30", "agent.value_max=-30: it must be above agent.value_"),
        ("agent=sac agent.critic=categorical agent.value_max=-20", "agent.value_max=-20: it must"),
        ("env=fanuc env.hold_steps=3", "env.hold_steps=3: without effect; add env.success"),
        ("env=fanuc env.robot=lr_mate_200id env.urdf=a.urdf", "env.urdf=a.urdf: both name an arm"),
        ("env=fanuc env.simulator=genesis env.num_workers=2", "env.num_workers=2: env.simulator"),
        ("env=lift_cube env.friction=.5", "env.friction=0.5: write [lowest, highest], above 0"),
        ("env=lift_cube env.mass=[1,inf]", "env.mass=[1, inf]: write [lowest, highest], above 0"),
        ("agent=sac agent.target_entropy=nan", "agent.target_entropy=nan: input should be"),
        ("env=lift_cube env.mass=[3]", "env.mass=[3]: write [lowest, highest], above 0"),
        ("env=lift_cube env.frame_stack=2", "env.frame_stack=2: there are no images"),
        ("env.curriculum=true env.mixture=true", "env.curriculum, env.mixture: set one"),
        ("env.schedule=[[0,3,0,30]]", "env.schedule: without effect"),
        ("mode=eval env.curriculum=true env.schedule=[[5,3,0,30]]", "increase from frame 0, not"),
        ("mode=eval env.mixture=true env.schedule=[[0,0,0,30]]", "=[[0, 0, 0, 30]]: input should"),
        ("agent.demonstration_share=.5", "agent.demonstration_share=0.5: without effect; add"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_early(typed: str, said: str) -> None:
    """By the outlines, and by the classes before they are built."""
    base = {"experiment": None, "agent": "iqn", "env": "marinenav"}
    settings = {**base, **read_settings(typed.split())}
    composed = compose(settings)
    for refuse in (lambda: check_early(composed.config), lambda: check(settings, composed)):
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            refuse()


@pytest.mark.slow
def test_every_preset_passes_the_early_check() -> None:
    for preset in choices_of("experiment"):
        env, _, agent = preset.rpartition("/")
        typed = {"experiment": preset}
        if env in choices_of("env"):
            typed |= {"agent": agent, "env": env}
        elif env:
            typed |= {"agent": agent, "env": "gym", "env.name": env}
        config = compose(typed).config
        if "agent" in config and "_target_" in config.agent and "_target_" in config.env:
            check_early(config)  # other presets leave a choice to the user
