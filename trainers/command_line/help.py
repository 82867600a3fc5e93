"""Help text of the command line, made from the signatures that are the schemas of all settings."""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from torchrl_gpu.arguments import AS_TYPED, CheckedFields, descriptions_of, parameters_of
from trainers.command_line.composition import compose, one_line_errors, read_settings
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import GROUPS, choices_of, folders_of, path_of
from trainers.components.outline import outline_of
from trainers.components.sections import AUTOMATIC, PROVIDED, SECTIONS, TARGET, parts_of

_USAGE = """\
Train, evaluate and show robot policies.

  python -m trainers.run agent=AGENT env=ENV [setting=value ...]
  python -m trainers.run experiment=reach_pixels        a preset that selects agent and env too
  python -m trainers.run mode=eval checkpoint=runs/...
  python -m trainers.run mode=demo checkpoint=runs/...
  python -m trainers.run mode=export checkpoint=...     ONNX and torch.export files of a policy
  python -m trainers.run mode=eval policy=...           evaluate such files
  python -m trainers.run mode=record checkpoint=runs/... record.format=lerobot
  python -m trainers.run checkpoint=runs/...            resume training
  python -m trainers.run ... viewer=web                 watch it live in the browser, also mode=demo
  python -m trainers.run ... resume=auto                resume the newest run of these settings
  python -m trainers.run mode=tune agent=AGENT env=ENV  search settings; see tune.*
  python -m trainers.run ... -m seed=1,2,3              one run for each value
  python -m trainers.run ... --cfg job                  all settings of the command, without a run
  python -m trainers.run --version                      version of this library
  torchrl-gpu compare runs/...                          runs with intervals: a table and a page
  torchrl-gpu report runs/...                           a page on one run
  torchrl-gpu replay checkpoint=runs/... path=FOLDER    the replay of a run as a dataset
  torchrl-gpu robot arm.urdf                            an arm of your own: names, limits, reach
  torchrl-gpu import-sb3 model.zip                      a model of Stable-Baselines3 as a policy
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


@one_line_errors()
def help_text(arguments: Sequence[str]) -> str:
    """Return the help text: usage, and every setting of the chosen components with its value.

    Args:
        arguments: settings as typed. `agent=` and `env=`, or the `_target_` of a class of the
            user, choose the components, or `checkpoint=`, those of its run; values are those that
            the command would use.
    """
    typed = read_settings(arguments)
    composed = compose(typed)
    config, choices = composed
    preset, origin = choices["experiment"], "preset"
    source = f"experiment={preset}" if preset else ""
    if config.get("checkpoint") is not None:
        from trainers.command_line.origin import origin_of  # imports torch

        (config, _), run = origin_of(typed, composed)
        source, origin = f"checkpoint={run.checkpoint}", "checkpoint"
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    presets: dict[str, list[str]] = {}
    folders = folders_of(typed)
    for experiment in choices_of("experiment", *folders):
        env, _, agent = experiment.rpartition("/")
        presets.setdefault(env, []).append(agent)
    width = max(map(len, presets))
    learner = outline_of("agents.Agent")
    assert isinstance(learner, type)
    outlines = {name: outline_of(path_of("agent", name)) for name in choices_of("agent")}
    ours = [n for n, o in outlines.items() if isinstance(o, type) and issubclass(o, learner)]
    others = [name for name in outlines if name not in ours]
    learning = [name for name in choices_of("agent", *folders) if name not in others]
    parts = [
        _USAGE.format(
            agents=f"{_list(learning)}; {_list(others)} (not for mode=train)",
            envs=_list(choices_of("env", *folders)),
            experiments=textwrap.indent(textwrap.fill(_list(presets.pop("")), width=98), "  "),
            presets="\n".join(f"  {env:{width}}  {_list(presets[env])}" for env in presets),
        ),
        *([f"Values marked {origin} are those of {source}\n"] if source else []),
        _settings_text("", GeneralSettings, values, typed, origin),
    ]
    for group in GROUPS:
        section = values.get(group) or {}
        if TARGET not in section:
            parts.append(f"Settings of {group}: add {group}=... to see them\n")
            continue
        own_class = f"{group}.{TARGET}" in typed
        component = _schema(group, section[TARGET], may_outline=not own_class)
        parts.append(_settings_text(group, component, section, typed, origin))
        for name, (default, _) in parts_of(component).items():
            own = section.get(name) or {}
            part: Callable[..., Any] = default
            if TARGET in own:
                part = _schema(f"{group}.{name}", own[TARGET], section[TARGET], may_outline=False)
            parts.append(_settings_text(f"{group}.{name}", part, own, typed, origin))
    for name, path in SECTIONS.items():
        parts.append(
            _settings_text(name, _schema(name, path), values.get(name) or {}, typed, origin)
        )
    return "\n".join(filter(None, parts))


def _schema(
    group: str, path: str, owner: str = "", *, may_outline: bool = True
) -> Callable[..., Any]:
    """Return the outline of a class or function of this library, or import a class of the user.

    Args:
        group: name of the section, as in `agent` or `agent.encoder`.
        path: dotted path of the class.
        owner: dotted path of the class that a part, such as an encoder, belongs to.
        may_outline: whether the class is known to fit the section.
    """
    outline = outline_of(path) if may_outline else None
    if outline is not None:
        return outline
    from trainers.components.component import find_class

    kind: type | None = None
    if owner:
        whole, _, name = group.partition(".")
        _, kind = parts_of(find_class(whole, owner))[name]
    return find_class(group, path, kind)


def _settings_text(
    group: str,
    component: Callable[..., Any],
    values: Mapping[str, Any],
    typed: Collection[str],
    origin: str,
) -> str:
    """List the settings of a component, or the general ones: description, range and value.

    Values that were not typed are marked as those of their origin, a preset or a checkpoint. The
    text is empty for a component without settings.
    """
    title = f"Settings of {group} ({component.__name__})" if group else "General settings"
    prefix = f"{group}." if group else ""
    provided = PROVIDED.get(group, ())
    words = descriptions_of(component)
    lines = [title]
    for name, parameter in parameters_of(component).items():
        if name in provided or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        if isinstance(default, CheckedFields):
            shown = f"settings below; your own class: {prefix}{name}._target_=package.Class"
        elif name in values:
            shown = f"{values[name]}, {'typed' if f'{prefix}{name}' in typed else origin}"
        elif default is inspect.Parameter.empty:
            shown = "required"
        else:
            shown = str(list(default) if isinstance(default, tuple) else default)
        automatic = "or auto" if AUTOMATIC.get(group) == name else ""
        meaning = "; ".join(part for part in (words.get(name, ""), automatic) if part)
        text = _as_typed(f"{meaning} ({shown})".lstrip())
        lines += textwrap.wrap(
            text,
            width=100,
            initial_indent=f"  {prefix}{name}  ".ljust(34),
            subsequent_indent=" " * 34,
        )
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


def _as_typed(text: str) -> str:
    """Return a text with the values of Python as they are typed on the command line."""
    return re.sub(rf"\b({'|'.join(AS_TYPED)})\b", lambda word: AS_TYPED[word[0]], text)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
