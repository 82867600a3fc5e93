"""Collectors that never have a place; nothing is imported here, so their processes start soon."""

import os


class Unstartable:
    """A collector on a machine that lacks the library."""

    def __init__(self, cores: int) -> None:
        raise ModuleNotFoundError("No module named 'trainers'")

    def place(self) -> None:
        """Never called."""


class DyingEarly:
    """A collector whose process ends at once."""

    def __init__(self, cores: int) -> None:
        os._exit(1)

    def place(self) -> None:
        """Never called."""
