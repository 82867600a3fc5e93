"""Examine a robot file: `torchrl-gpu robot FILE`. See `--help`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Json

from envs.fanuc import inspection
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.errors import ConfigurationError


def examine(
    *,
    file: Path,
    tool: str | None = None,
    home: Json[Sequence[float]] | None = None,
    picture: Path | None = None,
) -> int:
    """Show whether the environment fanuc can simulate an arm, and what the arm can do.

      torchrl-gpu robot arm.urdf [setting=value ...]

    The report has the limits of the joints, the gap of the home posture to contact, the share of
    the workspace that the arm reaches, and the command that trains it.

    Settings:
        file: URDF file of the arm, also as the first argument without `file=`.
        tool: link whose frame reaches the targets (the child link of the last joint).
        home: joint angles of the home posture in rad, as [0,0.5,0,-1.5,0,0] (a manipulable one).
        picture: picture of the arm with reachable positions, a PNG file (the name of the file, in
            the working directory).

    Raises:
        ConfigurationError: the environment cannot simulate the arm.
    """
    if file.suffix == ".xml":
        raise ConfigurationError(f"{file}: fanuc reads URDF files; convert the MJCF file to one")
    if not file.is_file():
        raise ConfigurationError(f"{file}: there is no such file")
    picture = Path(f"{file.stem}.png") if picture is None else picture
    if picture.suffix != ".png":
        raise ConfigurationError(f"picture={picture}: name a .png file")
    report = inspection.examine(file, tool, home, picture)
    print(f"{file}: an arm for the environment fanuc\n\n{report}")
    return 0


def start(arguments: Sequence[str]) -> int:
    """Examine the file that the arguments name, and return the exit code."""
    first, *others = arguments or [""]
    if first and "=" not in first and not first.startswith("-"):
        arguments = [f"file={first}", *others]
    return call_with_arguments(examine, arguments)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
