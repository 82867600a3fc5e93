"""Libraries that are compared, each with the packages and the module of its jobs."""

from __future__ import annotations

import importlib.util
import pkgutil
from typing import NamedTuple

from benchmarks.peers.jobs import Builders
from torchrl_gpu.errors import ConfigurationError


class Library(NamedTuple):
    """A library that can be measured.

    Attributes:
        module: module of its jobs, which has them as `BUILDERS`; it can be imported without the
            library.
        title: name in tables.
        packages: names of its packages to import.
        install: arguments of pip that bring the packages.
    """

    module: str
    title: str
    packages: tuple[str, ...] = ()
    install: str = ""


LIBRARIES = {
    "ours": Library("ours", "ours"),
    "sb3": Library(
        "sb3", "SB3", ("stable_baselines3", "sb3_contrib"), "stable-baselines3 sb3-contrib"
    ),
    "sbx": Library("sbx", "SBX", ("sbx",), "sbx-rl"),
    "skrl": Library("skrl", "skrl", ("skrl",), "skrl"),
    "rsl_rl": Library("rsl_rl", "rsl_rl", ("rsl_rl",), "rsl-rl-lib"),
    "torchrl": Library("torchrl_losses", "TorchRL"),
    "plain": Library("plain", "plain PyTorch"),
}


def missing_packages(library: str) -> list[str]:
    """Return the packages of a library that are not installed."""
    packages = LIBRARIES[library].packages
    return [name for name in packages if importlib.util.find_spec(name) is None]


def builders_of(library: str) -> Builders:
    """Return the builders of the jobs that a library can do.

    Raises:
        ConfigurationError: a package of the library is not installed.
    """
    missing = missing_packages(library)
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} not installed: pip install {LIBRARIES[library].install}"
        )
    builders: Builders = pkgutil.resolve_name(
        f"benchmarks.peers.{LIBRARIES[library].module}:BUILDERS"
    )
    return builders
