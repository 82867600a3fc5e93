"""Layout of checkpoints and policy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.errors import ConfigurationError

LAYOUT = 6


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint or a policy file.

    Args:
        path: path of the file.

    Raises:
        ConfigurationError: the file cannot be read, see `load_state`, or has another layout.
    """
    state = load_state(path)
    if state.get("layout") != LAYOUT:
        raise ConfigurationError(
            f"checkpoint={path}: another version of this library wrote it, in layout "
            f"{state.get('layout')}; this version reads layout {LAYOUT}"
        )
    return state
