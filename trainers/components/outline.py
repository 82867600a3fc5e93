"""Outlines of this library's classes, read from source code, without the seconds that torch takes.

The outline of a class is a class of the same name with the same docstring, bases and constructor
signature, and that of a function a function: enough to check settings and to describe them. A
placeholder, which checks nothing, replaces the names of other libraries.
"""

import ast
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Final

from pydantic_core import CoreSchema, core_schema

from torchrl_gpu import arguments, errors

_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = ("agents", "envs", "torchrl_gpu", "trainers")
# Libraries that take little time to import.
_LIGHT: Final = {*sys.stdlib_module_names, "annotated_types", "pydantic", "typing_extensions"}


class _Placeholder:
    """A value that only an import can tell, or one derived from it; as a base, it is left out."""

    def __repr__(self) -> str:
        return "..."

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    __getitem__ = __or__ = __ror__ = __call__

    def __mro_entries__(self, _: object) -> tuple[()]:
        return ()

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        return core_schema.any_schema()


_UNKNOWN: Final = _Placeholder()


def outline_of(path: str) -> Callable[..., Any] | None:
    """Return the outline of a class or function of this library.

    Returns:
        None for code of others, for which its import must decide, and for a path without code.
    """
    module, _, name = path.rpartition(".")
    found = getattr(_module(module), name, None) if module.partition(".")[0] in _OURS else None
    return None if found is _UNKNOWN else found


@functools.cache
def _module(name: str) -> ModuleType:
    """Return the outline of a module, whose names are evaluated at first use (PEP 562)."""
    # Found by its place, because a search imports the packages above it.
    path = _ROOT.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = file.read_text(encoding="utf-8") if file.is_file() else ""
    statements = dict(_statements(ast.parse(source).body))
    module = ModuleType(name)

    def evaluate(word: str) -> Any:
        if word not in statements:
            raise AttributeError(word)
        statement = statements.pop(word)
        setattr(module, word, _UNKNOWN)  # for a definition that names itself, or fails
        if isinstance(statement, str):
            setattr(module, word, _imported(statement))
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in statements:
                    evaluate(node.id)
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([statement], []), name, "exec"), vars(module))
        return getattr(module, word)

    module.__getattr__ = evaluate  # type: ignore[method-assign]
    return module


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    top = module.partition(".")[0]
    if top in _OURS and module not in (arguments.__name__, errors.__name__):
        try:
            return getattr(_module(module), name)
        except AttributeError:
            return _module(f"{module}.{name}")
    # The function of a validator may need other libraries.
    is_light = top in {*_OURS, *_LIGHT} and not name.endswith("Validator")
    return resolve_name(path) if is_light else _UNKNOWN


def _statements(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt | str]]:
    """Yield the names of a module, each with a statement, or with `module:name` of an import."""
    for statement in body:
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _statements(statement.body)
            case ast.Import(names=names):
                for each in names:
                    yield each.asname or each.name.partition(".")[0], each.name
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                for each in names:
                    yield each.asname or each.name, f"{module}:{each.name}"
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, statement
            case ast.ClassDef() | ast.FunctionDef():
                _reduce(statement)
                yield statement.name, statement


def _reduce(node: ast.ClassDef | ast.FunctionDef) -> None:
    """Leave of a definition its signature and docstring; of a class fields and constructor too.

    A class also keeps its check of settings together.
    """
    kept = node.body[:1] if ast.get_docstring(node) is not None else []
    node.decorator_list = []
    if isinstance(node, ast.FunctionDef):
        node.returns = None
        node.body = [*kept, *ast.parse("raise TypeError").body]
        return
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            _reduce(each)
            kept.append(each)
        elif isinstance(each, ast.AnnAssign) or getattr(each, "name", "") == arguments.COMBINATION:
            kept.append(each)
    node.body = kept or [ast.Pass()]
