"""The memory that a run will allocate: announced, and refused where it does not fit."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

_logger = logging.getLogger(__name__)

# The rest of the free memory is left to everything else that a run allocates.
_USABLE_SHARE_OF_FREE_MEMORY = 0.9


def check_memory(
    needed: Callable[[int], int],
    count: int,
    device: torch.device,
    *,
    setting: str,
    purpose: str,
    least: int = 1,
    announce: bool = True,
) -> None:
    """Reject a setting that does not fit into memory, and announce the size of one that does.

    Every setting fits on a device that does not report its free memory.

    Args:
        needed: function that returns the size in bytes for a count; ascending.
        count: value of the setting.
        device: device of the memory.
        setting: name of the setting.
        purpose: user of the memory, for the message.
        least: minimum count.
        announce: log the size.

    Raises:
        ConfigurationError: the memory is insufficient; the message names the count that fits.
    """
    size, free = needed(count), accelerator_of(device).free_memory
    usable = None if free is None else int(_USABLE_SHARE_OF_FREE_MEMORY * free)
    if usable is not None and size > usable:
        fitting = bisect.bisect_right(range(count), usable, key=needed) - 1
        advice = f"{setting}={fitting} would fit" if fitting >= least else "none would fit"
        raise ConfigurationError(
            f"{setting}={count}: {purpose} needs {_readable(size)} and {device} has "
            f"{_readable(usable)} to spare; {advice}"
        )
    if announce:
        _logger.info("%s=%d: %s needs %s on %s", setting, count, purpose, _readable(size), device)


def _readable(size: float) -> str:
    """Return a number of bytes with its unit, such as 1.4 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
