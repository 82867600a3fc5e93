"""Optional packages, which the extras of this library install."""

from importlib.util import find_spec

from torchrl_gpu.errors import ConfigurationError


def check_extra(setting: str, extra: str, *packages: str) -> None:
    """Refuse a setting that needs packages of an extra which are not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigurationError(
            f'{setting}: {", ".join(missing)} not installed; pip install "torchrl-gpu[{extra}]"'
        )
