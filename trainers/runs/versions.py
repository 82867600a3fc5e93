"""Versions of this library, of its main dependencies and of the checkout."""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LIBRARY = "torchrl-gpu"


def versions() -> dict[str, str]:
    """Return the versions of this library, torch and torchrl, by name.

    `commit` is that of a checkout of this library, with `-dirty` where files differ from it; an
    installed package has none.
    """
    found = {}
    for name in (_LIBRARY, "torch", "torchrl", "tensordict"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout that is not installed
            continue
    if commit := _commit():
        found["commit"] = commit
    return found


def _commit() -> str | None:
    if not (_ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or not its repository
        return None
    return done.stdout.strip()
