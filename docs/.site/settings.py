"""Extension of griffe: the arguments of a constructor as `--help` explains them.

The annotations of a constructor state type, range and meaning once. A static reader of the source
does not see them, so the class is imported and asked, as the command line does.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

from torchrl_gpu.arguments import annotations_of, constructor_of, descriptions_of, parameters_of


class Settings(griffe.Extension):
    """Replaces the parameters in the docstring of a class by those of its checked constructor."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe each argument of the constructor with its type, range, meaning and default."""
        if cls.docstring is None or cls.parent is None or not cls.parent.is_module:
            return
        found = getattr(importlib.import_module(cls.parent.path), cls.name, None)
        if not inspect.isclass(found) or not _is_checked(found):
            return
        kind = griffe.DocstringSectionKind.parameters
        sections = [
            each for each in cls.docstring.parse("google", warnings=False) if each.kind is not kind
        ]
        place = 1 if sections and sections[0].kind is griffe.DocstringSectionKind.text else 0
        parameters = _parameters(found)
        if parameters:
            sections.insert(place, griffe.DocstringSectionParameters(parameters))
        cls.docstring.__dict__["parsed"] = sections


def _is_checked(found: type) -> bool:
    """Whether the constructor of a class is checked against its annotations."""
    constructor: Any = found.__init__
    return hasattr(constructor, "__wrapped__")


def _parameters(found: type) -> list[griffe.DocstringParameter]:
    """Return the arguments of the constructor of a class that are explained there."""
    words, types = descriptions_of(found), annotations_of(constructor_of(found), False)
    return [
        griffe.DocstringParameter(
            name,
            description=words[name],
            annotation=_type(types.get(name)),
            value=_default(parameter),
        )
        for name, parameter in parameters_of(found).items()
        if name in words
    ]


def _type(annotation: Any) -> str:
    """Return a type as it is written in code, without its modules."""
    text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))


def _default(parameter: inspect.Parameter) -> str | None:
    """Return a default as it is written in code; None without one."""
    if parameter.default is inspect.Parameter.empty:
        return None
    text = repr(parameter.default)
    return f"{type(parameter.default).__name__}()" if text.startswith("<") else text
