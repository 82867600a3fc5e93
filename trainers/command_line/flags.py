"""Flags of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from torchrl_gpu.errors import ConfigurationError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see --help")


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the flags of a command, and as `settings` all of its other arguments.

    Raises:
        ConfigurationError: there is no such flag.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-i", "--info", choices=["all", "config", "defaults", "defaults-tree"])
    parser.add_argument("settings", nargs="*")
    return parser.parse_intermixed_args(arguments)
