"""The extra `export`: packages that write and run exported policies."""

from importlib.util import find_spec

import torch

from torchrl_gpu.errors import ConfigurationError

WRITES = ("onnx", "onnxscript", "onnxruntime")
RUNS = ("onnxruntime",)


def check_extra(setting: str, packages: tuple[str, ...]) -> None:
    """Refuse a setting that needs packages of the extra which are not installed.

    Args:
        setting: setting as typed, as in `mode=export`.
        packages: import names, `WRITES` or `RUNS`.

    Raises:
        ConfigurationError: a package is missing, or torch is too old to export.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f'{setting}: {", ".join(missing)} not installed; pip install "torchrl-gpu[export]"'
        )
    if packages is WRITES and torch.__version__ < "2.6":
        raise ConfigurationError(f"{setting}: torch {torch.__version__} is too old; install 2.6")
