"""Lazy exports of a package (PEP 562)."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that imports its names lazily.

    The packages of this library can therefore be imported without torch, which the worker processes
    of simulators rely on. The names are those that the package imports for type checkers, in the
    form `from module import name as name` under `if TYPE_CHECKING`.
    """
    spec: Any = sys.modules[package].__spec__
    modules = {
        name.asname: statement.module
        for statement in ast.walk(ast.parse(spec.loader.get_source(package)))
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
        if name.asname
    }

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *modules})

    return get, names, list(modules)
