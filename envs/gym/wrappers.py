"""Wrappers of Gymnasium environments by their names."""

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

import gymnasium

from torchrl_gpu.errors import ConfigurationError, one_line


def wrapper_named(name: str) -> str:
    """Return the name of a wrapper, as in `gymnasium.wrappers.FlattenObservation`, if there is one.

    Raises:
        ValueError: the class cannot be imported, or is not a wrapper.
    """
    try:
        found = resolve_name(name)
    except (AttributeError, ImportError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name} cannot be imported ({error}); write PACKAGE.CLASS") from None
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise ValueError(f"{name} is not a class of gymnasium.Wrapper")
    return name


def wrap(env: gymnasium.Env, names: Sequence[str]) -> gymnasium.Env:
    """Return an environment in wrappers, the first one innermost, each called with it alone.

    Raises:
        ConfigurationError: a wrapper does not fit the environment.
    """
    for name in names:
        wrapper: Any = resolve_name(name)
        try:
            env = wrapper(env)
        except Exception as error:  # assertions of Gymnasium's, and missing entries of a space
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigurationError(f"env.wrappers: {name} raised {reason}") from error
    return env
