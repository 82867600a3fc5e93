"""Libraries that are compared, each with the packages and the module of its jobs."""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.peers.jobs import Build, Builders
from torchrl_gpu.errors import ConfigurationError


class Library(NamedTuple):
    """A library that can be measured.

    Attributes:
        title: name in tables.
        builders: objects `module:NAME` with the builders of its jobs, within this package; the
            modules can be imported without the library.
        packages: names of its packages to import.
        install: arguments of pip that bring the packages.
        is_pinned: whether its process keeps to one core, because the library has no setting that
            limits all of its threads.
    """

    title: str
    builders: tuple[str, ...]
    packages: tuple[str, ...] = ()
    install: str = ""
    is_pinned: bool = False


LIBRARIES = {
    "ours": Library("ours", ("ours:BUILDERS", "collection:OURS", "sampling:OURS", "seas:OURS")),
    "sb3": Library(
        "SB3",
        ("sb3:BUILDERS", "sampling:SB3"),
        ("stable_baselines3", "sb3_contrib"),
        "stable-baselines3 sb3-contrib",
    ),
    "sbx": Library("SBX", ("sbx:BUILDERS",), ("sbx",), "sbx-rl", is_pinned=True),
    "skrl": Library("skrl", ("skrl:BUILDERS", "seas:SKRL"), ("skrl",), "skrl"),
    "rsl_rl": Library("rsl_rl", ("rsl_rl:BUILDERS", "seas:RSL_RL"), ("rsl_rl",), "rsl-rl-lib"),
    "torchrl": Library(
        "TorchRL", ("torchrl_losses:BUILDERS", "collection:TORCHRL", "sampling:TORCHRL")
    ),
    "plain": Library(
        "plain PyTorch", ("plain:BUILDERS", "collection:LOOP", "sampling:PLAIN", "seas:PLAIN")
    ),
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
    builders: dict[str, Mapping[str, Build]] = {}
    for name in LIBRARIES[library].builders:
        builders |= pkgutil.resolve_name(f"benchmarks.peers.{name}")
    return builders
