"""Wrappers of Gymnasium environments by the names of their classes."""

import inspect
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Any

import gymnasium

from torchrl_gpu.errors import ConfigurationError, one_line

_CLASS = "_target_"  # Hydra's name for the class of a section


def known_wrapper(wrapper: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return the name of a wrapper, or a section of name and arguments, if there is one.

    Raises:
        ValueError: the class cannot be imported, is not a wrapper, or takes other arguments.
    """
    name, arguments = _parts(wrapper)
    if not isinstance(name, str):
        raise ValueError(f"a wrapper without a name; write {{{_CLASS}: PACKAGE.CLASS, ...}}")
    try:
        found = resolve_name(name)
    except (AttributeError, ImportError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name} cannot be imported ({error}); write PACKAGE.CLASS") from None
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise ValueError(f"{name} is not a class of gymnasium.Wrapper")
    signature = inspect.signature(found)
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        _, *takes = signature.parameters
        section = ", ".join([f"{_CLASS}: {name}", *(f"{taken}: VALUE" for taken in takes)])
        raise ValueError(f"{error}; write {{{section}}}") from None
    return wrapper


def wrap(env: gymnasium.Env, wrappers: Iterable[str | dict[str, Any]]) -> gymnasium.Env:
    """Return an environment in wrappers, see `known_wrapper`, the first one innermost.

    Raises:
        ConfigurationError: a wrapper does not fit the environment.
    """
    for wrapper in wrappers:
        name, arguments = _parts(wrapper)
        try:
            env = resolve_name(name)(env, **arguments)
        except Exception as error:  # assertions of Gymnasium's, and missing entries of a space
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigurationError(f"env.wrappers: {name} raised {reason}") from error
    return env


def _parts(wrapper: str | dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the name of a wrapper and its arguments after the environment."""
    section = {_CLASS: wrapper} if isinstance(wrapper, str) else wrapper
    arguments = {
        name: tuple(value) if isinstance(value, list) else value  # a shape, mostly
        for name, value in section.items()
        if name != _CLASS
    }
    return section.get(_CLASS), arguments
