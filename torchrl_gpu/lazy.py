"""Lazy exports of a package (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that imports its names lazily.

    The packages of this library can therefore be imported without torch, which the worker processes
    of simulators rely on.

    Args:
        package: name of the package.
        modules: full name of the module that defines each exported name.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *modules})

    return get, names, list(modules)
