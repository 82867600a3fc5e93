"""Arguments of a benchmark as the program itself takes them: `name=value`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torchrl_gpu.arguments import check_value, parameters_of, suggest
from torchrl_gpu.errors import ConfigurationError

_INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


def call_with_arguments(function: Callable[..., int]) -> int:
    """Call a function with the arguments of the command line, and return the exit code.

    Args:
        function: its signature is the schema, its docstring the help; returns the exit code.

    Returns:
        What the function returned; 2 after one line that says what is wrong with an argument; 130
        after Ctrl-C.
    """
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print(inspect.getdoc(function))
        return 0
    try:
        return function(**read_arguments(function, arguments))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def read_arguments(function: Callable[..., Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of `name=value` arguments, as a function takes them.

    Args:
        function: its signature is the schema.
        arguments: as typed.

    Raises:
        ConfigurationError: a name is unknown or missing, or a value is of another type or range.
    """
    parameters = parameters_of(function)
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in parameters:
            raise ConfigurationError(
                f"{name}: there is no such argument{suggest(name, parameters)}"
            )
        if not equals:
            raise ConfigurationError(f"{argument}: write {name}=...")
        values[name] = check_value(function, name, value)
    for name, parameter in parameters.items():
        if name not in values and parameter.default is inspect.Parameter.empty:
            raise ConfigurationError(f"{name}= is missing")
    return values
