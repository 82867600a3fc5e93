"""Number of DirectML devices, counted in a child process because a failure can end it."""

import functools
import importlib.util
import signal
import subprocess
import sys
from typing import Final

import torch

from torchrl_gpu.devices.accelerator import Presence

# The torch that the last release of torch-directml is built against.
DIRECTML_TORCH: Final = "2.4.1"

_SECONDS = 60.0
_PROBE = (
    "import torch_directml as directml\n"
    "count = directml.device_count() if directml.is_available() else 0\n"
    "import torch\n"
    "for index in range(count): torch.ones(1, device=directml.device(index)).add(1).cpu()\n"
    "print(count)\n"
)


@functools.cache
def probe_directml() -> Presence:
    """Return the number of DirectML devices that can compute, or why there are none.

    Without a driver, the package raises OSError, ImportError or RuntimeError, or aborts the
    process. It is therefore tried in a child process, once, and only if torch-directml is installed
    with the version of torch that it needs.
    """
    if importlib.util.find_spec("torch_directml") is None:
        return Presence(0, "torch-directml is not installed")
    if torch.__version__.partition("+")[0] != DIRECTML_TORCH:
        needs = f"torch-directml needs torch {DIRECTML_TORCH} and finds {torch.__version__}"
        return Presence(0, f"{needs}; give it a separate virtual environment")
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Presence(0, f"torch-directml did not answer within {_SECONDS:g} s")
    except OSError as error:
        return Presence(0, f"a process to try torch-directml could not be started: {error}")
    if child.returncode != 0:
        said = child.stderr.strip().splitlines() if child.returncode == 1 else []
        return Presence(0, f"torch-directml failed: {(said or [_end(child.returncode)])[-1]}")
    count = int(child.stdout.split()[-1])
    return Presence(count, "" if count else "torch-directml finds no GPU with DirectX 12")


def _end(code: int) -> str:
    """Return how a process ended: by a signal, or with an exit code as Windows writes it."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code if code < 256 else hex(code)}"
