"""Search for DirectML devices, in a child process because a failure can end the process."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from typing import Final

import torch

from torchrl_gpu.devices.presence import Presence

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


def probe_directml(seconds: float = _SECONDS) -> Presence:
    """Return the number of DirectML devices that compute, or the reason for none.

    Without a driver, the package raises OSError, ImportError or RuntimeError, or aborts the
    process, which is therefore another one. No process starts where torch-directml is not installed
    or torch has another version than it needs.

    Args:
        seconds: longest time that the child process may take.
    """
    if importlib.util.find_spec("torch_directml") is None:
        return Presence(0, "torch-directml is not installed")
    if torch.__version__.partition("+")[0] != DIRECTML_TORCH:
        needs = f"torch-directml needs torch {DIRECTML_TORCH} and finds {torch.__version__}"
        return Presence(0, f"{needs}; give it a virtual environment of its own")
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Presence(0, f"torch-directml does not answer within {seconds:g} s")
    except OSError as error:
        return Presence(0, f"the process that tries torch-directml does not start: {error}")
    if child.returncode != 0:
        said = child.stderr.strip().splitlines() if child.returncode == 1 else []
        return Presence(0, f"torch-directml fails: {(said or [_end(child.returncode)])[-1]}")
    count = int(child.stdout.split()[-1])
    return Presence(count, "" if count else "torch-directml finds no GPU with DirectX 12")


def _end(code: int) -> str:
    """Return the end of a process in words: a signal, or an exit code as Windows writes it."""
    if code < 0:
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process ended with code {code if code < 256 else hex(code)}"
