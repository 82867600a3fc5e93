"""Examine a robot file: `torchrl-gpu robot FILE`. See `--help`."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from PIL import Image

from envs.examination import Examination
from envs.fanuc import inspection as fanuc
from envs.lift_cube import inspection as lift_cube
from torchrl_gpu.checkpoints.files import atomic_file, new_file
from torchrl_gpu.commands import asks_for_help, check_once, command_line, show
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.checking import check
from trainers.command_line.composition import compose, read_settings

USAGE = """\
Show whether an environment can simulate an arm, and how far the arm reaches.

  torchrl-gpu robot arm.urdf                       for fanuc; add settings: env.control_rate=30
  torchrl-gpu robot arm.xml                        for lift_cube: prints names of joints and links,
                                                   and the settings that the arm needs
  torchrl-gpu robot arm.urdf env=lift_cube ...     a URDF file for lift_cube
  torchrl-gpu robot experiment=PRESET              the arm of a preset

The report has the limits of the joints, the home posture and its gap to contact, the share of the
positions that the arm reaches, and the command that trains it. All settings of env are those of
`python -m trainers.run env=ENV --help`.

  picture   picture of the arm and of positions that it reaches, a new PNG file (default: one named
            after the robot file, in the working directory)\
"""

# By suffix of a robot file: the environment that it is for, unless `env=` says another.
_ENVIRONMENTS = {".urdf": "fanuc", ".xml": "lift_cube"}

# By environment: setting of the robot file, and function that examines the arm.
_EXAMINERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Examination]]] = {
    "fanuc": ("env.urdf", fanuc.examine),
    "lift_cube": ("env.arm.file", lift_cube.examine),
}


def main(arguments: Sequence[str]) -> int:
    """Print the report of `examine`, or the help; return the exit code."""
    show(USAGE if asks_for_help(arguments) else examine(arguments))
    return 0


def examine(arguments: Sequence[str]) -> str:
    """Return the report on an arm, and draw it."""
    files = [argument for argument in arguments if _is_file(argument)]
    check_once(argument for argument in arguments if argument not in files)
    pictures = [a.removeprefix("picture=") for a in arguments if a.startswith("picture=")]
    typed = [a for a in arguments if a not in files and not a.startswith("picture=")]
    if len(files) > 1:
        raise ConfigurationError(f"{' '.join(files)}: name one robot file")
    if pictures and not pictures[-1].endswith(".png"):
        raise ConfigurationError(f"picture={pictures[-1]}: name a .png file")
    if pictures and not Path(pictures[-1]).parent.is_dir():
        raise ConfigurationError(f"picture={pictures[-1]}: this folder does not exist")
    if pictures and Path(pictures[-1]).exists():
        raise ConfigurationError(f"picture={pictures[-1]}: it exists; choose another file")
    env, selected = _completed(typed, *map(Path, files))
    given = {**selected, **read_settings(typed)}
    settings = check(given, compose(given)).env.arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    examination = _EXAMINERS[env][1](settings)
    report = f"{examination.file}: an arm for the environment {env}\n\n{examination.report}"
    if examination.picture is None:
        return report
    new = new_file(Path(Path(examination.file).stem + ".png"))
    chosen = nullcontext(Path(pictures[-1])) if pictures else new
    with chosen as picture, atomic_file(picture) as file:
        Image.fromarray(examination.picture).save(file, "png")
    typed = [*(f"{name}={_as_value(x)}" for name, x in selected.items()), *typed]
    return (
        f"{report}\n  picture    {picture}: the home posture and reachable positions"
        f"\n  train it   {command_line(['python', '-m', 'trainers.run', *typed])}"
    )


def _is_file(argument: str) -> bool:
    """Return whether an argument is a path; one of a robot file may look like a setting."""
    path = Path(argument)
    return "=" not in argument or (path.suffix in _ENVIRONMENTS and path.is_file())


def _completed(typed: Sequence[str], file: Path | None = None) -> tuple[str, dict[str, str]]:
    """Return the environment, and the choices and the robot file that complete the settings."""
    _, choices = compose(read_settings(typed))
    agent, env = choices["agent"], choices["env"]
    folder, _, name = (choices["experiment"] or "").rpartition("/")
    if folder in _EXAMINERS and not (agent and env):
        raise ConfigurationError(
            f"experiment={folder}/{name}: write env={folder} agent={name}, which select this preset"
        )
    selected = {} if agent else {"agent": "sac"}
    if file is not None:
        if file.suffix not in _ENVIRONMENTS:
            raise ConfigurationError(f"{file}: name a .urdf file, or a .xml file of MuJoCo")
        if env is None:
            env = selected["env"] = _ENVIRONMENTS[file.suffix]
    if env is None:
        raise ConfigurationError("a robot file is missing: torchrl-gpu robot arm.urdf")
    if env not in _EXAMINERS:
        raise ConfigurationError(f"env={env}: choose one of: {', '.join(_EXAMINERS)}")
    if file is not None:
        selected[_EXAMINERS[env][0]] = str(file)
    return env, selected


def _as_value(text: str) -> str:
    """Return a path or a choice as typed: quoted, where Hydra would read more than a path."""
    if re.fullmatch(r"[\w./-]+", text, re.ASCII):
        return text
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"
