"""Version of the installed library."""

from importlib.metadata import version
from typing import Final

__version__: Final = version("torchrl-gpu")
"""Version as in `0.2.0`, that of `pyproject.toml` when the library was installed."""
