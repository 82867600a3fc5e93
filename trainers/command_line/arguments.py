"""Arguments, help text and error messages of the command line."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydra.errors import OverrideParseException

from torchrl_gpu.arguments import Configurable, descriptions_of, parameters_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import PROVIDED
from trainers.command_line.sizes import AUTOMATIC
from trainers.components.choices import (
    CUSTOM,
    GROUPS,
    choices_of,
    class_of,
    find_class,
    learning_agents,
)
from trainers.components.component import parts_of
from trainers.evaluation.evaluator import Evaluator
from trainers.evaluation.film import film
from trainers.runs.layout import load_checkpoint

SECTIONS: dict[str, Callable[..., Any]] = {"evaluation": Evaluator, "demo": film}

MULTIRUN = ("-m", "--multirun")

PATHS = ("checkpoint", "runs")

USAGE = """\
Train, evaluate and show robot policies.

  python -m trainers.run agent=AGENT env=ENV [setting=value ...]
  python -m trainers.run experiment=reach_pixels        a preset that selects agent and env too
  python -m trainers.run mode=eval checkpoint=runs/...
  python -m trainers.run mode=demo checkpoint=runs/...
  python -m trainers.run checkpoint=runs/...            resume training
  python -m trainers.run ... -m seed=1,2,3              one run for each value
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

General settings
  mode        train, eval to evaluate a policy, or demo to film one (train)
  seed        seed of all random numbers, at least 0 (0)
  device      compute device: auto, cuda, rocm, xpu, mps, directml or cpu, or one of several, as
              in cuda:1; auto takes the first of them that is there (auto)
  device_memory_limit
              memory of the device for this run, as a fraction (0.5) or an amount (8GiB, 512MiB);
              null for no limit. Torch enforces it on cuda, rocm, xpu and mps; everywhere, replays
              and simulators that exceed it are refused (null)
  threads     number of CPU threads of PyTorch, at least 1; null for one per core. More than one
              helps networks from 256 wide on, and images, where cores are free (1)
  precision   number format of matrix products and convolutions in learning: fp32, tf32, bf16 or
              fp16; parameters, losses and distributions are float32 in all of them (fp32)
  compile     compile the losses of the agent: off, default, or max-autotune, which searches for
              the fastest kernels; the first update takes from seconds to a minute (off)
  graphs      off, or on to replay policies and updates as captured graphs, where the host queues
              one piece of work instead of one for each kernel; cuda, rocm and xpu have them (off)
  observation_keys
              observations that the agent receives, as in [observation] (null: all of them)
  checkpoint  run folder or checkpoint file to resume, evaluate or film (null)
  runs        folder of all runs; each run writes to runs/<env>/<agent>/<time> (runs)
"""


def complete(arguments: list[str]) -> list[str]:
    """Return the arguments in the form that Hydra accepts.

    * A checkpoint selects its agent and its environment.
    * The user's own class (`agent._target_=package.Class`) replaces a choice of the group.
    * `env.name=CartPole-v1` selects the presets of that Gymnasium environment.
    * Any setting of a constructor is accepted, also one that its YAML file does not list.

    Args:
        arguments: arguments as typed.

    Raises:
        ConfigurationError: there is no checkpoint at `checkpoint=`, or a sweep over `env.name`
            needs several presets.
    """
    values = dict(a.split("=", 1) for a in arguments if "=" in a)
    completed = [_with_quotes(_with_force(argument)) for argument in arguments]
    if values.get("experiment") == "null":
        completed[completed.index("experiment=null")] = "~experiment"
    trained: Mapping[str, str] = {}
    if values.get("checkpoint", "null") != "null":
        state = load_checkpoint(find_checkpoint(Path(values["checkpoint"])))
        trained = (state.get("config") or {}).get("choices", {})
    for group in ("agent", "env"):
        if group in values:
            continue
        if f"{group}._target_" in values:
            completed.append(f"{group}={CUSTOM}")
        elif group in trained:
            is_choice = trained[group] in choices_of(group)
            completed.append(f"{group}={trained[group] if is_choice else CUSTOM}")
    if values.get("env") == "gym" and "experiment" not in values:
        completed.append(_preset_of(values.get("env.name", "")))
    # Hydra's parser takes settings in one piece only, so its flags go behind all of them.
    return sorted(completed, key=lambda argument: argument.startswith("-") or "=" not in argument)


def _preset_of(name: str) -> str:
    """Return the argument that selects the preset of a Gymnasium environment.

    The defaults list of config.yaml sees the choice `env=gym`, but not the setting `env.name`.
    """
    names = re.findall(r"(?:[\w.]+:)?([\w./-]+)", name)  # several in a sweep
    tuned = [n for n in names if any(c.startswith(f"{n}/") for c in choices_of("experiment"))]
    if len(names) > 1 and tuned:
        raise ConfigurationError(
            f"env.name={name}: {tuned[0]} has presets of its own; start one command for each name, "
            "or select one experiment=... for all"
        )
    return f"experiment={names[0] if names else CUSTOM}/${{oc.select:agent,{CUSTOM}}}"


def _with_force(argument: str) -> str:
    is_setting = re.match(rf"({'|'.join((*GROUPS, *SECTIONS))})\.[\w.]+=", argument)
    return f"++{argument}" if is_setting else argument


def _with_quotes(argument: str) -> str:
    """Quote a path for Hydra, whose grammar gives spaces, commas and brackets a meaning."""
    name, _, path = argument.partition("=")
    if name not in PATHS or path in ("", "null") or path[0] in "'\"":
        return argument
    quoted = path.replace("'", "\\'")
    return f"{name}='{quoted}'"


def explain(error: Exception) -> str:
    """Return an error of Hydra as one line of text."""
    text = str(error)
    group, _, choice = (getattr(error, "missing_cfg_file", None) or "").partition("/")
    if group in GROUPS:
        return f"{group}={choice}: there is no such {group}; there are: {_list(choices_of(group))}"
    if found := re.match(r"You must specify '(\w+)'", text):
        group = found[1]
        return f"{group}= is missing; there are: {_list(choices_of(group))}"
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return f"{found[1]}: there is no such setting; see --help"
    if isinstance(error, OverrideParseException):
        return f"{error.override.lstrip('+')}: {text.splitlines()[0]}"
    return " ".join(text.split())


def help_text(arguments: list[str]) -> str:
    """Return the help text: usage, and every setting of the chosen components.

    Args:
        arguments: arguments as typed; `agent=` and `env=` choose the components.
    """
    chosen = dict(a.split("=", 1) for a in arguments if "=" in a)
    presets: dict[str, list[str]] = {}
    for experiment in choices_of("experiment"):
        env, _, agent = experiment.rpartition("/")
        presets.setdefault(env, []).append(agent)
    width = max(map(len, presets))
    parts = [
        USAGE.format(
            agents=_agents(),
            envs=_list(choices_of("env")),
            experiments=_indented(_list(presets.pop(""))),
            presets="\n".join(f"  {env:{width}}  {_list(presets[env])}" for env in presets),
        )
    ]
    for group in GROUPS:
        choice = chosen.get(group, "default" if group == "trainer" else None)
        if choice in choices_of(group):
            component = class_of(group, choice)
            parts.append(_settings_text(group, component))
            for name, (default, kind) in parts_of(component).items():
                path = chosen.get(f"{group}.{name}._target_")
                part = default if path is None else find_class(f"{group}.{name}", path, kind)
                parts.append(_settings_text(f"{group}.{name}", part))
        else:
            parts.append(f"Settings of {group}: add {group}=... to see them\n")
    parts += [_settings_text(name, function) for name, function in SECTIONS.items()]
    return "\n".join(parts)


def _settings_text(group: str, component: Callable[..., Any]) -> str:
    """List the settings of a component: name, text of the docstring, default."""
    words = descriptions_of(component)
    lines = [f"Settings of {group} ({component.__name__})"]
    for name, parameter in parameters_of(component).items():
        hidden = name in PROVIDED.get(group, ())
        if hidden or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown: Any = "required"
        elif isinstance(default, Configurable):
            shown = f"settings below; your own class: {group}.{name}._target_=package.Class"
        else:
            shown = list(default) if isinstance(default, tuple) else default
        automatic = "; or auto" if AUTOMATIC.get(group) == name else ""
        text = _as_typed(f"{words.get(name, '')}{automatic} ({shown})")
        lines += textwrap.wrap(
            text,
            width=100,
            initial_indent=f"  {group}.{name}  ".ljust(34),
            subsequent_indent=" " * 34,
        )
    return "\n".join(lines) + "\n"


def _as_typed(text: str) -> str:
    """Return a text with the values of Python as they are typed on the command line."""
    for python, typed in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{python}\b", typed, text)
    return text


def _indented(text: str) -> str:
    return textwrap.fill(text, width=100, initial_indent="  ", subsequent_indent="  ")


def _agents() -> str:
    """Return the names of all agents, those that do not learn apart."""
    learning = learning_agents()
    others = [name for name in choices_of("agent") if name not in learning]
    return f"{_list(learning)}; {_list(others)} (mode=eval and mode=demo only)"


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) if names else "none"
