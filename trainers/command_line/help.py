"""Help text of the command line, made from the signatures that are the schemas of all settings."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchrl_gpu.arguments import AS_TYPED, CheckedFields, descriptions_of, parameters_of
from trainers.command_line.schema import GeneralSettings
from trainers.command_line.settings import SECTIONS
from trainers.command_line.sizes import AUTOMATIC
from trainers.components.choices import GROUPS, choices_of, class_of, learning_agents
from trainers.components.component import PROVIDED, find_class, parts_of

_USAGE = """\
Train, evaluate and show robot policies.

  python -m trainers.run agent=AGENT env=ENV [setting=value ...]
  python -m trainers.run experiment=reach_pixels        a preset that selects agent and env too
  python -m trainers.run mode=eval checkpoint=runs/...
  python -m trainers.run mode=demo checkpoint=runs/...
  python -m trainers.run checkpoint=runs/...            resume training
  python -m trainers.run ... -m seed=1,2,3              one run for each value
  python -m trainers.run ... --cfg job                  all settings of the command, without a run
  torchrl-gpu robot arm.urdf                            an arm of your own: names, limits, reach
  torchrl-gpu doctor                                    devices, limits, speed, what to install
  torchrl-gpu redirect script.py ...                    a script that hard-codes cuda, on any device

Choices
  agent       {agents}
  env         {envs}
  experiment  a preset, or null for none (the preset of agent and env)
  agent._target_=package.Class, env._target_=package.Class: your own class
  env.num_envs=auto, agent.batch_size=auto: numbers for the cores, the device and its free memory

Presets, as in experiment=quick or experiment=fanuc/sac
{experiments}
{presets}
"""


def help_text(arguments: Sequence[str]) -> str:
    """Return the help text: usage, and every setting of the chosen components.

    Args:
        arguments: settings as typed; `agent=` and `env=` choose the components.
    """
    chosen = dict(a.split("=", 1) for a in arguments if "=" in a)
    presets: dict[str, list[str]] = {}
    for experiment in choices_of("experiment"):
        env, _, agent = experiment.rpartition("/")
        presets.setdefault(env, []).append(agent)
    width = max(map(len, presets))
    learning = learning_agents()
    others = [name for name in choices_of("agent") if name not in learning]
    parts = [
        _USAGE.format(
            agents=f"{_list(learning)}; {_list(others)} (mode=eval and mode=demo only)",
            envs=_list(choices_of("env")),
            experiments=textwrap.indent(textwrap.fill(_list(presets.pop("")), width=98), "  "),
            presets="\n".join(f"  {env:{width}}  {_list(presets[env])}" for env in presets),
        ),
        _settings_text("", GeneralSettings),
    ]
    for group in GROUPS:
        choice = chosen.get(group, "default" if group == "trainer" else None)
        if choice not in choices_of(group):
            parts.append(f"Settings of {group}: add {group}=... to see them\n")
            continue
        component = class_of(group, choice)
        parts.append(_settings_text(group, component))
        for name, (default, kind) in parts_of(component).items():
            path = chosen.get(f"{group}.{name}._target_")
            part = default if path is None else find_class(f"{group}.{name}", path, kind)
            parts.append(_settings_text(f"{group}.{name}", part))
    parts += [_settings_text(name, function) for name, function in SECTIONS.items()]
    return "\n".join(parts)


def _settings_text(group: str, component: Callable[..., Any]) -> str:
    """List the settings of a component, or the general ones: description, range and default."""
    title = f"Settings of {group} ({component.__name__})" if group else "General settings"
    prefix = f"{group}." if group else ""
    provided = PROVIDED.get(group, ())
    words = descriptions_of(component)
    lines = [title]
    for name, parameter in parameters_of(component).items():
        if name in provided or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown: Any = "required"
        elif isinstance(default, CheckedFields):
            shown = f"settings below; your own class: {prefix}{name}._target_=package.Class"
        else:
            shown = list(default) if isinstance(default, tuple) else default
        automatic = "; or auto" if AUTOMATIC.get(group) == name else ""
        text = _as_typed(f"{words.get(name, '')}{automatic} ({shown})")
        lines += textwrap.wrap(
            text,
            width=100,
            initial_indent=f"  {prefix}{name}  ".ljust(34),
            subsequent_indent=" " * 34,
        )
    return "\n".join(lines) + "\n"


def _as_typed(text: str) -> str:
    """Return a text with the values of Python as they are typed on the command line."""
    return re.sub(rf"\b({'|'.join(AS_TYPED)})\b", lambda word: AS_TYPED[word[0]], text)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
