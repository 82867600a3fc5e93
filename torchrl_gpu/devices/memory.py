"""The memory of a device: its limit, and the check of everything large before it is allocated."""

from __future__ import annotations

import bisect
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

_logger = logging.getLogger(__name__)

# The rest of the free memory is left to everything else that a run allocates.
_USABLE_SHARE_OF_FREE_MEMORY = 0.9

_UNITS = {
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)},
}
_BY_LOWER_CASE = {unit.lower(): size for unit, size in _UNITS.items()}

# A device and its limit in bytes.
_limit: ContextVar[tuple[torch.device, int] | None] = ContextVar("limit", default=None)


def memory_limit(limit: float | str, device: torch.device) -> int:
    """Return a limit of the memory of a device in bytes.

    Args:
        limit: fraction of the memory of the device, above 0 to 1; or an amount above 0, such as
            `8GiB` or `512MiB` (KiB to TiB, or KB to TB).
        device: device of this machine.

    Raises:
        ConfigurationError: the limit is no fraction and no amount, or exceeds the memory.
    """
    total = accelerator_of(device).total_memory
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(limit).strip())
    number = float(amount[1]) if amount else 0.0
    unit = amount[2].lower() if amount else ""
    is_fraction = not unit and number <= 1.0
    if number <= 0.0 or not (is_fraction or unit in _BY_LOWER_CASE):
        raise ConfigurationError(
            f"device_memory_limit={limit}: it has to be a fraction of the memory above 0 to 1, as "
            "in 0.5, or an amount above 0, as in 8GiB or 512MiB"
        )
    if total is None and is_fraction:
        raise ConfigurationError(
            f"device_memory_limit={limit}: {device} does not report its memory; an amount works, "
            "as in 8GiB"
        )
    size = int(number * (total or 0)) if is_fraction else int(number * _BY_LOWER_CASE[unit])
    if total is not None and size > total:
        raise ConfigurationError(
            f"device_memory_limit={limit}: {device} has {readable(total)}; an amount up to it or "
            "a fraction up to 1 works"
        )
    return max(size, 1)


@contextmanager
def limited_memory(device: torch.device, limit: int | None) -> Iterator[None]:
    """Limit the memory of a device that this process uses within the block, and announce it.

    `check_memory` refuses what exceeds the limit on any device. Torch enforces it, too, for its own
    allocations on cuda, rocm, xpu and mps.

    Args:
        device: device of the memory.
        limit: limit in bytes, at least 1; None for no limit.
    """
    if limit is None:
        yield
        return
    accelerator = accelerator_of(device)
    total = accelerator.total_memory
    is_enforced = total is not None and accelerator.limit_memory(min(1.0, limit / total))
    _logger.info(
        "device_memory_limit: %s of %s, %s",
        readable(limit),
        device,
        "enforced by torch"
        if is_enforced
        else "which torch cannot enforce here: larger replays and simulators are refused, but "
        "nothing else is limited",
    )
    token = _limit.set((device, limit))
    try:
        yield
    finally:
        _limit.reset(token)
        if is_enforced:
            accelerator.limit_memory(1.0)


def free_memory(device: torch.device, limit: int | None = None) -> int | None:
    """Return the free memory of a device within its limit, in bytes; None if it is unknown.

    Args:
        device: device of this machine.
        limit: limit in bytes; None for the one of the surrounding `limited_memory`, if any.
    """
    accelerator = accelerator_of(device)
    limit = _limit_of(device) if limit is None else limit
    free = accelerator.free_memory
    if limit is None:
        return free
    within = max(0, limit - accelerator.used_memory)
    return within if free is None else min(free, within)


def _limit_of(device: torch.device) -> int | None:
    limited = _limit.get()
    return None if limited is None or limited[0] != device else limited[1]


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

    Every setting fits on a device that does not report its free memory and has no limit.

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
    size, free = needed(count), free_memory(device)
    usable = None if free is None else int(_USABLE_SHARE_OF_FREE_MEMORY * free)
    if usable is not None and size > usable:
        fitting = bisect.bisect_right(range(count), usable, key=needed) - 1
        advice = f"{setting}={fitting} would fit" if fitting >= least else "none would fit"
        limit = _limit_of(device)
        within = "" if limit is None else f" within device_memory_limit={readable(limit)}"
        raise ConfigurationError(
            f"{setting}={count}: {purpose} needs {readable(size)} and {device} has "
            f"{readable(usable)} to spare{within}; {advice}"
        )
    if announce:
        _logger.info("%s=%d: %s needs %s on %s", setting, count, purpose, readable(size), device)


def readable(size: float) -> str:
    """Return a number of bytes with its unit, such as 1.4 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
