"""Optional packages of benchmarks, which the extra `benchmark` installs."""

from __future__ import annotations

import importlib.util

from torchrl_gpu.errors import ConfigurationError


def require(*packages: str) -> None:
    """Check that packages of the extra are installed.

    A benchmark calls this first and imports the packages where it uses them, so that its module can
    be imported and its `--help` printed without them.

    Args:
        packages: import names of the packages.

    Raises:
        ConfigurationError: a package is not installed; the message names the extra.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f'{", ".join(missing)} not installed: pip install "torchrl-gpu[benchmark]"'
        )
