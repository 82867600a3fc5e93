"""Optional packages, which the extras of this library install."""

from importlib.util import find_spec

from torchrl_gpu.errors import ConfigurationError


def check_extra(user: str, extra: str, *packages: str) -> None:
    """Refuse a setting or another `user` of packages of an extra which are not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ConfigurationError(
            f'{user}: {", ".join(missing)} not installed; pip install "torchrl-gpu[{extra}]"'
        )
