"""Exceptions that end the program, printed for the user."""

import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from torchrl_gpu.errors import WorkerError, one_line

_PACKAGES: Final = ("agents", "configs", "envs", "torchrl_gpu", "trainers")
_ROOT: Final = Path(__file__).parents[2]
_LIBRARIES: Final = [*(_ROOT / name for name in _PACKAGES), Path(sysconfig.get_path("stdlib"))]


def print_exception(error: BaseException) -> None:
    """Print an exception and its traceback.

    Of an exception in code of the user, such as an environment, only the frames from there on are
    printed: those of this program do not help to find the cause. One in a library, as where an
    environment returns other shapes than its specs say, has its text above all frames.
    """
    if isinstance(error, WorkerError):
        print(f"error: {error}", file=sys.stderr)
        return
    frames = error.__traceback__
    while frames is not None and not _is_of_user(frames):
        frames = frames.tb_next
    if frames is not None:
        file = frames.tb_frame.f_code.co_filename
        print(f"error: {type(error).__name__} in {file}", file=sys.stderr)
    elif not _is_of_program(error):
        print(f"error: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
    traceback.print_exception(type(error), error, frames or error.__traceback__)


def _is_of_program(error: BaseException) -> bool:
    """Return whether a module of this program has raised an exception."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return any(_ROOT / name in Path(last.f_code.co_filename).parents for name in _PACKAGES)


def _is_of_user(frames: TracebackType) -> bool:
    """Return whether a frame is neither of this program nor of an installed library."""
    path = Path(frames.tb_frame.f_code.co_filename)
    if not path.is_absolute() or {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return not any(library in path.parents for library in _LIBRARIES)
