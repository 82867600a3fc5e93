"""Commands that are functions: arguments in the `name=value` form of the main program."""

import inspect
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torchrl_gpu.arguments import check_value, parameters_of, suggest
from torchrl_gpu.errors import REFUSED, ConfigurationError
from torchrl_gpu.signals import exit_code_after


def call_with_arguments(
    function: Callable[..., int], arguments: Sequence[str] | None = None
) -> int:
    """Call a function with `name=value` arguments, by default those of this process.

    The signature of the function is the schema of the arguments, and its docstring the text of
    `--help`.

    Returns:
        Exit code: the result of the function, 2 after a one-line error about an argument, or that
        of a signal.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if asks_for_help(arguments):
        text, *_ = re.split(r"\n\n(?:Returns|Raises):", inspect.getdoc(function) or "")
        show(text.replace("\nArgs:", "\nSettings:"))
        return 0
    try:
        return function(**read_arguments(function, arguments))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt as stop:
        return exit_code_after(getattr(stop, "number", signal.SIGINT))


def command_line(words: Iterable[str], *more: str) -> str:
    """Return a command as it is typed in a shell of this system, with a line for each of `more`.

    Under Windows in double quotes: cmd would pass single ones on as a part of the word, and
    PowerShell would divide a word without any at its commas.
    """
    quote, goes_on = (_in_double_quotes, "^") if sys.platform == "win32" else (shlex.quote, "\\")
    return f" {goes_on}\n  ".join((" ".join(map(quote, words)), *map(quote, more)))


def _in_double_quotes(word: str) -> str:
    """Return a word in double quotes where it needs them."""
    if re.fullmatch(r"[\w@%+=:./\\-]+", word):
        return word
    return '"' + word.replace('"', r"\"") + '"'


def show(text: str) -> None:
    """Print a text, or as much of it as a reader such as `head` takes.

    Raises:
        ConfigurationError: the output cannot be written, as on a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:  # Python would write the rest at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ConfigurationError(f"cannot write the output: {error.strerror}") from error


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of a command ask for its help text."""
    return not {"-h", "--help"}.isdisjoint(arguments)


def read_arguments(
    function: Callable[..., Any], arguments: Sequence[str], given: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of `name=value` arguments, converted to the types of a function.

    The signature of the function is the schema. Parameters that are `given`, because the caller
    passes them itself, cannot be typed.

    Raises:
        ConfigurationError: a name is unknown or missing, a value has the wrong type or range, or
            an argument has two values.
    """
    check_once(arguments)
    parameters = {n: p for n, p in parameters_of(function).items() if n not in given}
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in parameters:
            raise ConfigurationError(f"{name}: unknown argument{suggest(name, parameters)}")
        if not equals:
            raise ConfigurationError(f"{argument}: write {name}=...")
        values[name] = check_value(function, name, value)
    for name, parameter in parameters.items():
        if name not in values and parameter.default is inspect.Parameter.empty:
            raise ConfigurationError(f"{name}= is missing")
    return values


def check_once(arguments: Iterable[str]) -> None:
    """Refuse a `name=value` argument that is typed twice with different values."""
    typed: dict[str, str] = {}
    for argument in arguments:
        before = typed.setdefault(argument.partition("=")[0], argument)
        if before != argument:
            raise ConfigurationError(f"{before} {argument}: leave one of them out")
