"""List the published results that are older than the code that they measure.

A result is as old as the oldest commit that its file names, or as the commit that last changed a
file that names none. The commits listed after it changed the measured code; whether they changed
the figures, a new run tells.

    python -m benchmarks.stale
"""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from benchmarks.report import Figures, main, print_table
from torchrl_gpu.errors import ConfigurationError

REPOSITORY: Final = Path(__file__).parents[1]
RESULTS: Final = Path("docs/results")
_LEARNERS: Final = ("agents", "torchrl_gpu/replay", "trainers/training")
# The code that each file measures, by patterns of file names: the first that fits.
MEASURED: Final[dict[str, tuple[str, ...]]] = {
    "atari.txt": ("envs/gym", "agents/dqn.py", "torchrl_gpu/replay"),
    "collectives.txt": ("agents", "torchrl_gpu/execution", "torchrl_gpu/replay"),
    "compare.txt": ("trainers/comparing", "torchrl_gpu/intervals.py"),
    "demonstrations.txt": ("envs/lift_cube", "torchrl_gpu/replay", "torchrl_gpu/datasets"),
    "directml.txt": ("agents", "torchrl_gpu/acting", "torchrl_gpu/execution", "torchrl_gpu/replay"),
    "execution*.txt": ("agents", "torchrl_gpu/execution"),
    "export.txt": ("pretrained", "torchrl_gpu/acting", "trainers/exporting"),
    "fanuc.txt": ("envs/fanuc", "torchrl_gpu/acting"),
    "fanuc_demo.gif": ("envs/fanuc", "trainers/evaluation/film.py"),
    "fanuc_learning.*": ("envs/fanuc", "configs/experiment/fanuc", *_LEARNERS),
    "fanuc_simulators.txt": ("envs/fanuc", "envs/genesis.py"),
    "kill.txt": ("envs/fanuc", "trainers/training", "torchrl_gpu/checkpoints"),
    "learning*": ("benchmarks/learning", "docs/results/learning"),
    "lift_cube.txt": ("envs/lift_cube", "envs/genesis.py"),
    "lift_cube_environments.txt": ("envs/lift_cube", "configs/experiment/reach_pixels.yaml"),
    "lift_*_demo.gif": ("envs/lift_cube", "trainers/evaluation/film.py"),
    "marinenav.txt": ("envs/marinenav",),
    "marinenav_cuda.txt": ("envs/marinenav",),
    "marinenav_demo.gif": ("envs/marinenav", "trainers/evaluation/film.py"),
    "marinenav_learning.txt": ("envs/marinenav", "configs/experiment/marinenav", *_LEARNERS),
    "marinenav_scores.txt": ("envs/marinenav", "pretrained/marinenav"),
    "memory.txt": ("agents", "trainers", "torchrl_gpu"),
    "mutations.txt": ("tests/helpers", "torchrl_gpu/checkpoints", "trainers/runs"),
    "overlap.txt": ("envs/fanuc", "trainers/training", "torchrl_gpu/acting"),
    "peers*": ("agents", "benchmarks/peers", "torchrl_gpu/execution", "torchrl_gpu/replay"),
    "policy.txt": ("agents", "torchrl_gpu/acting"),
    "precision_learning.txt": ("envs/fanuc", "configs/experiment/fanuc", *_LEARNERS),
    "ray_collectors.txt": ("envs/fanuc", "trainers/collecting", "torchrl_gpu/acting"),
    "replay.txt": ("torchrl_gpu/replay",),
    "resume.txt": ("agents", "envs", "trainers/training", "torchrl_gpu"),
    "robot_*.png": (
        "trainers/robot.py",
        "envs/fanuc/inspection.py",
        "envs/lift_cube/inspection.py",
    ),
    "saving_*.txt": ("torchrl_gpu/checkpoints", "torchrl_gpu/replay", "trainers/training"),
    "scale.txt": ("torchrl_gpu/distributed.py", "trainers/ranks.py", "trainers/training"),
    "startup.txt": ("trainers", "configs", "torchrl_gpu"),
    "threads.txt": ("agents", "torchrl_gpu/devices"),
    "trend.json": ("agents", "envs", "trainers", "torchrl_gpu"),
    "tune.txt": ("agents", "envs/fanuc", "trainers/tuning", "trainers/modes"),
    "versions.txt": ("agents", "envs/marinenav", "torchrl_gpu/execution", "torchrl_gpu/replay"),
    "viewer.txt": ("trainers/viewing", "trainers/modes"),
    "*_demo.gif": ("envs/gym", "trainers/evaluation/film.py"),
    "*.png": ("benchmarks/learning", "docs/results/learning"),
    "*_fanuc*.json": ("envs/fanuc", *_LEARNERS),
    "*_lift_*.json": ("envs/lift_cube", *_LEARNERS),
    "*_pixels.json": ("envs/lift_cube", *_LEARNERS),
    "*.json": ("envs/gym", *_LEARNERS),
}


def git(*arguments: str, repository: Path = REPOSITORY) -> str:
    """Return the output of a git command.

    Raises:
        ConfigurationError: git fails, for instance outside a checkout.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise ConfigurationError("git: not installed") from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(error.stderr.strip()) from error
    return done.stdout.strip()


def measured(name: str) -> tuple[str, ...]:
    """Return the code that the result of a file name measures, as paths in the repository."""
    return next(paths for pattern, paths in MEASURED.items() if fnmatch(name, pattern))


def result_files(repository: Path = REPOSITORY) -> list[Path]:
    """Return the published results: text, figures and pictures, without the pages on them."""
    return sorted(
        path
        for path in (repository / RESULTS).rglob("*")
        if path.is_file() and path.suffix != ".md"
    )


def made_at(file: Path, repository: Path = REPOSITORY) -> str:
    """Return the commit of a result: the oldest that the file names, or its own.

    Raises:
        ConfigurationError: the file is not in the history of a checkout, or names a commit that is
            not.
    """
    text = file.read_text(errors="ignore") if file.suffix in {".txt", ".json"} else ""
    named = set(re.findall(r"\bcommit ([0-9a-f]{7,40})\b", text))
    if not named:
        return git("log", "-1", "--format=%h", "--", str(file), repository=repository)
    oldest = git("merge-base", "--octopus", *named, repository=repository)
    return git("rev-parse", "--short", oldest, repository=repository)


def changes_since(file: Path, repository: Path = REPOSITORY) -> list[str]:
    """Return the commits that changed the measured code after a result, newest first.

    Raises:
        ConfigurationError: see `made_at`.
    """
    commits = f"{made_at(file, repository)}..HEAD"
    log = ("log", "--format=%h %s", commits, "--", *measured(file.name))
    return git(*log, repository=repository).splitlines()


def list_stale() -> Figures:
    """Print every result whose measured code has changed since, with the newest such commit.

    Raises:
        ConfigurationError: this is not a git checkout with its history.
    """
    rows, figures = [], {}
    for file in result_files():
        if changes := changes_since(file):
            name = file.relative_to(REPOSITORY / RESULTS).as_posix()
            figures[name] = len(changes)
            rows.append([name, made_at(file), str(len(changes)), changes[0]])
    print_table(["result", "made at", "changes since", "newest"], rows)
    return {"stale": figures}


if __name__ == "__main__":
    main(list_stale)
