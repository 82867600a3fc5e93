"""Examine a robot file: `torchrl-gpu robot FILE`. See `--help`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.fanuc import inspection as fanuc
from envs.lift_cube import inspection as lift_cube
from torchrl_gpu.checkpoints.files import reason
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.composition import compose, read_settings
from trainers.command_line.settings import check
from trainers.components.choices import check_choices

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

  picture   picture of the arm and of positions that it reaches, a PNG file (default: named after
            the robot file, in the working directory)\
"""

# By environment: setting of the robot file, and function that returns the report and whether the
# arm can be trained.
_EXAMINERS: dict[str, tuple[str, Callable[[Mapping[str, Any], Path | None], tuple[str, bool]]]] = {
    "fanuc": ("env.urdf", fanuc.examine),
    "lift_cube": ("env.arm.file", lift_cube.examine),
}


def examine(arguments: Sequence[str]) -> str:
    """Return the report on an arm, and draw it.

    Args:
        arguments: path of the robot file, and settings as typed.

    Raises:
        ConfigurationError: a setting is wrong, or the environment cannot simulate the arm.
    """
    typed = [argument for argument in arguments if not argument.startswith("picture=")]
    picture = next((Path(a.removeprefix("picture=")) for a in arguments if a not in typed), None)
    if picture is not None and picture.suffix != ".png":
        raise ConfigurationError(f"picture={picture}: name a .png file")
    if typed and "=" not in typed[0]:
        typed = _with_file(Path(typed[0]), typed[1:])
    names = {argument.partition("=")[0] for argument in typed}
    if not names & {"env", "experiment"}:
        raise ConfigurationError("a robot file is missing: torchrl-gpu robot arm.urdf")
    if not names & {"agent", "experiment"}:
        typed = ["agent=sac", *typed]
    check_choices(typed)
    given = read_settings(typed)
    settings = check(given, compose(given))
    env = settings.config["choices"]["env"]
    if env not in _EXAMINERS:
        raise ConfigurationError(f"env={env}: choose one of: {', '.join(_EXAMINERS)}")
    try:
        report, is_usable = _EXAMINERS[env][1](settings.env.arguments(), picture)
    except OSError as error:
        raise ConfigurationError(f"picture={picture or error.filename}: {reason(error)}") from error
    command = shlex.join(["python", "-m", "trainers.run", *typed])
    return f"{report}\n  train it   {command}" if is_usable else report


def _with_file(file: Path, others: Sequence[str]) -> list[str]:
    """Return settings that name the robot file and its environment."""
    if not file.is_file():
        raise ConfigurationError(f"{file}: this file does not exist")
    if file.suffix not in (".urdf", ".xml"):
        raise ConfigurationError(f"{file}: name a .urdf file, or a .xml file of MuJoCo")
    typed = dict(argument.partition("=")[::2] for argument in others)
    env = typed.get("env", "fanuc" if file.suffix == ".urdf" else "lift_cube")
    if env not in _EXAMINERS:
        raise ConfigurationError(f"env={env}: choose one of: {', '.join(_EXAMINERS)}")
    selected = [] if "env" in typed else [f"env={env}"]
    return [*selected, f"{_EXAMINERS[env][0]}={file}", *others]
