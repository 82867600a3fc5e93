"""The packages that only benchmarks need: they come with the extra `benchmark`."""

from __future__ import annotations

import importlib.util

from torchrl_gpu.errors import ConfigurationError


def require(*packages: str) -> None:
    """Refuse to begin without packages of the extra.

    A benchmark calls this first and imports these packages where it uses them, so that it can be
    imported, and can say what is missing, without them.

    Args:
        packages: the names by which they are imported.

    Raises:
        ConfigurationError: some are not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f'{", ".join(missing)} not installed: pip install "torchrl-gpu[benchmark]"'
        )
