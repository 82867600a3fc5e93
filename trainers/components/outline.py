"""Outlines of this library's classes, read from source code, without the seconds that torch takes.

The outline of a class is a class of the same name with the same docstring, bases and constructor
signature, and that of a function a function: enough to check settings and to describe them. A base
class of another library is left out, and an annotation that needs one is `object`.
"""

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from torchrl_gpu import arguments

_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = ("agents", "envs", "torchrl_gpu", "trainers")
# Libraries that take little time to import.
_LIGHT: Final = {*sys.stdlib_module_names, "annotated_types", "pydantic", "typing_extensions"}


class _UnknownError(Exception):
    """An expression needs what only an import can tell."""


class _Unknown:
    """Default that only an import can tell."""

    def __repr__(self) -> str:
        return "..."


_UNKNOWN: Final = _Unknown()


def outline_of(path: str) -> Callable[..., Any] | None:
    """Return the outline of a class or function of this library.

    Args:
        path: dotted path, as in `agents.SAC`.

    Returns:
        None for code of others, for which its import must decide, and for a path without code.
    """
    module, _, name = path.rpartition(".")
    if module.partition(".")[0] not in _OURS:
        return None
    try:
        return _source(module).outline(name)
    except (_UnknownError, KeyError):
        return None


class _Source:
    """The names of a module, evaluated at first use."""

    def __init__(self, name: str) -> None:
        # Found by its place, because a search imports the packages above it.
        path = _ROOT.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            raise _UnknownError
        self._name = name
        self._bindings = dict(_bindings(ast.parse(file.read_text(encoding="utf-8")).body))
        self._values: dict[str, Any] = {}

    def outline(self, name: str) -> Any:
        """Return the outline of a class or function, which the module may import."""
        match self._bindings[name]:
            case ast.FunctionDef() as node:
                return self._function(node)
            case (str() as module, str() as original):
                return _source(module).outline(original)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = self._value(self._bindings[name])
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _value(self, node: Any) -> Any:
        match node:
            case ast.ClassDef():
                return self._class(node)
            case ast.expr():
                return self._evaluate(node)
            case (module, name):
                return _imported(module, name)
        raise _UnknownError  # a function

    def _evaluate(self, node: ast.expr) -> Any:
        code = compile(ast.Expression(node), self._name, "eval")
        try:
            names: Any = self
            return eval(code, {}, names)
        except Exception:
            raise _UnknownError from None

    def _evaluate_or(self, node: ast.expr | None, default: Any) -> Any:
        try:
            return default if node is None else self._evaluate(node)
        except _UnknownError:
            return default

    def _class(self, node: ast.ClassDef) -> type:
        if node.decorator_list:
            raise _UnknownError
        bases = [self._evaluate_or(base, None) for base in node.bases]
        annotations: dict[str, Any] = {}
        body: dict[str, Any] = {
            "__module__": self._name,
            "__qualname__": node.name,
            "__doc__": ast.get_docstring(node, clean=False),
            "__annotations__": annotations,
        }
        for statement in node.body:
            match statement:
                case ast.FunctionDef(name="__init__"):
                    body["__init__"] = self._function(statement)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=value):
                    if not ast.unparse(hint).startswith("ClassVar"):
                        annotations[name] = self._evaluate_or(hint, object)
                        if value is not None:
                            body[name] = self._evaluate_or(value, _UNKNOWN)
        return type(node.name, tuple(base for base in bases if isinstance(base, type)), body)

    def _function(self, node: ast.FunctionDef) -> Callable[..., Any]:
        given, kinds = node.args, inspect.Parameter
        positional = [*given.posonlyargs, *given.args]
        # The last of the positional arguments have the defaults.
        defaults = dict(zip(positional[::-1], given.defaults[::-1], strict=False))
        defaults |= {a: d for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d}
        arguments = [
            *((kinds.POSITIONAL_OR_KEYWORD, each) for each in positional),
            *((kinds.VAR_POSITIONAL, each) for each in (given.vararg,) if each),
            *((kinds.KEYWORD_ONLY, each) for each in given.kwonlyargs),
            *((kinds.VAR_KEYWORD, each) for each in (given.kwarg,) if each),
        ]

        def outline(*arguments: Any, **settings: Any) -> Any:
            raise TypeError(f"{node.name} is an outline")

        outline.__name__ = outline.__qualname__ = node.name
        outline.__doc__ = ast.get_docstring(node, clean=False)
        outline.__annotations__ = {
            each.arg: self._evaluate_or(each.annotation, object)
            for _, each in arguments
            if each.annotation is not None
        }
        parameters = [
            kinds(each.arg, kind, default=self._evaluate_or(defaults[each], _UNKNOWN))
            if each in defaults
            else kinds(each.arg, kind)
            for kind, each in arguments
        ]
        outline.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return outline


@functools.cache
def _source(module: str) -> _Source:
    return _Source(module)


def _bindings(statements: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """Yield the names of a module: with an expression, a definition, or module and name there."""
    for statement in statements:
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _bindings(statement.body)
            case ast.Import():
                for each in statement.names:
                    yield each.asname or each.name.partition(".")[0], (each.name, None)
            case ast.ImportFrom(module=str() as module, level=0):
                for each in statement.names:
                    yield each.asname or each.name, (module, each.name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, statement


def _imported(module: str, name: str | None) -> Any:
    top = module.partition(".")[0]
    if top in _LIGHT or module == arguments.__name__:
        imported: Any = importlib.import_module(module)
        return imported if name is None else getattr(imported, name)
    if top not in _OURS:
        raise _UnknownError
    if name is None:
        return _source(module)
    try:
        return _source(module)[name]
    except KeyError:
        return _source(f"{module}.{name}")
