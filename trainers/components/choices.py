"""Choices of each config group by name, and the classes that they refer to."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_gpu.errors import ConfigurationError
from trainers.components.sections import TARGET

if TYPE_CHECKING:
    from agents.base import Agent

# Groups that are saved with a run, and all of them: collectors are those of the machine.
SAVED_GROUPS = ("agent", "env", "trainer")
GROUPS = (*SAVED_GROUPS, "collectors")

# The setting of Hydra that names folders of the user with further choices and presets.
SEARCH_PATH = "hydra.searchpath"

# Found by location, because a folder of the user may have the name of the package.
CONFIGS = Path(__file__).parents[2] / "configs"


def choices_of(group: str, *folders: Path) -> list[str]:
    """Return the sorted names of all choices of a config group.

    A choice in a folder has the form `folder/name`. Files with a leading underscore are not
    choices. The folders of the user are searched besides our own.
    """
    groups = [folder / group for folder in (CONFIGS, *folders)]
    files = [(g, file) for g in groups for file in g.rglob("[!_]*.yaml")]
    return sorted({file.relative_to(g).with_suffix("").as_posix() for g, file in files})


def folders_of(settings: Mapping[str, Any]) -> list[Path]:
    """Return the folders of the user, from `hydra.searchpath=[file:///folder, pkg://package]`."""
    typed = settings.get(SEARCH_PATH) or ""
    entries = re.findall(r"""(["'])(.+?)\1|([^\s"',\[\]][^"',\[\]]*)""", typed)  # quoted, or bare
    return [_folder(quoted or bare) for _, quoted, bare in entries]


def _folder(entry: str) -> Path:
    if not entry.startswith("pkg://"):
        folder = Path(entry.removeprefix("file://"))
        if not folder.is_dir():
            raise ConfigurationError(f"{SEARCH_PATH}={entry}: folder not found")
        return folder
    try:
        return Path(str(importlib.resources.files(entry.removeprefix("pkg://"))))
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{SEARCH_PATH}={entry}: {error}") from None


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse an argument that is not a setting, or an unknown agent, environment or preset.

    This needs only the names of files, so that a mistyped name is refused before torch is imported.
    """
    if others := [each for each in arguments if not isinstance(each, str)]:  # of a script
        raise ConfigurationError(
            f'{others[0]}: each setting is a separate argument, as in run("agent=sac", "env=fanuc")'
        )
    typed: dict[str, str] = {}
    for argument in arguments:
        name, equals, typed[name] = argument.partition("=")
        in_one = re.search(r"\s(agent|env|experiment)=", argument)  # by quotation marks
        if in_one or not (equals and name[:1].isidentifier() and " " not in name):
            hint = as_settings(arguments) or "NAME=VALUE"
            raise ConfigurationError(f"{argument or 'empty argument'}: write {hint}; see --help")
    for group in (*GROUPS, "experiment"):
        known = choices_of(group, *folders_of(typed))
        choice = typed.get(group, "null")
        if choice in (*known, "null"):
            continue
        if not choice:
            raise ConfigurationError(
                f"{group}=: the value is missing; choose one of: {', '.join(known)}"
            )
        if all(part in known for part in choice.split(",")):
            raise ConfigurationError(f"{group}={choice}: several values need -m")
        raise ConfigurationError(f"unknown {group} {choice}; choose one of: {', '.join(known)}")


def as_settings(arguments: Iterable[str]) -> str | None:
    """Return words such as `sac fanuc` or `--agent sac` as settings: `agent=sac env=fanuc`.

    Returns:
        None if a word cannot be read as a setting.
    """
    known = {choice: group for group in GROUPS for choice in choices_of(group)}
    settings: list[str] = []
    group = ""
    for word in re.sub(r"\s*=\s*", "=", " ".join(arguments)).split():
        bare = word.lstrip("-")
        if bare in GROUPS:
            group = bare  # of the next word
        elif bare[:1].isidentifier() and "=" in bare:
            settings.append(bare)
        elif group in ("", known.get(bare)) and bare in known:
            settings.append(f"{known[bare]}={bare}")
            group = ""
        else:
            return None
    return " ".join(settings) or None


def learning_agents() -> dict[str, type[Agent]]:
    """Return the classes of all agents that learn, by the name of the choice."""
    from agents.base import Agent  # imports torch, which the names of choices do not need

    classes = {name: class_of("agent", name) for name in choices_of("agent")}
    return {name: agent for name, agent in classes.items() if issubclass(agent, Agent)}


def class_of(group: str, choice: str) -> type:
    """Return the class of a choice of a config group."""
    from hydra.utils import get_class

    return get_class(path_of(group, choice))


def path_of(group: str, choice: str) -> str:
    """Return the dotted path of the class of a choice of a config group."""
    from omegaconf import OmegaConf

    section = OmegaConf.load(CONFIGS / group / f"{choice}.yaml")
    return str(OmegaConf.select(section, TARGET))
