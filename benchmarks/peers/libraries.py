"""Libraries that are compared, each with its packages; the module of its name holds its jobs."""

import importlib.util
import pkgutil
from typing import NamedTuple

from benchmarks.peers.jobs import Builders


class Library(NamedTuple):
    """A library that can be measured.

    Attributes:
        title: name in tables.
        packages: names of its packages to import.
        install: arguments of pip that bring the packages.
        is_pinned: whether its process keeps to one core, because the library has no setting that
            limits all of its threads.
    """

    title: str
    packages: tuple[str, ...] = ()
    install: str = ""
    is_pinned: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether all of its packages can be imported."""
        return all(importlib.util.find_spec(name) for name in self.packages)


LIBRARIES = {
    "ours": Library("ours"),
    "sb3": Library("SB3", ("stable_baselines3", "sb3_contrib"), "stable-baselines3 sb3-contrib"),
    "sbx": Library("SBX", ("sbx",), "sbx-rl", is_pinned=True),
    "skrl": Library("skrl", ("skrl",), "skrl"),
    "rsl_rl": Library("rsl_rl", ("rsl_rl",), "rsl-rl-lib"),
    "torchrl": Library("TorchRL"),
    "plain": Library("plain PyTorch"),
}


def builders_of(library: str) -> Builders:
    """Return the builders of the jobs that a library can do, without importing its packages."""
    builders: Builders = pkgutil.resolve_name(f"benchmarks.peers.{library}:BUILDERS")
    return builders
