"""The memory of a device: its limit, and the check of everything large before it is allocated."""

import bisect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from pydantic import ByteSize, TypeAdapter
from torch.overrides import TorchFunctionMode

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
_FACTORIES |= {torch.linspace, torch.arange, torch.eye, torch.Tensor.new_empty}

_logger = logging.getLogger(__name__)

# The rest of the free memory is left to everything else that a run allocates.
_USABLE_SHARE_OF_FREE_MEMORY = 0.9

# A device and its limit in bytes.
_limit: ContextVar[tuple[torch.device, int] | None] = ContextVar("limit", default=None)


def memory_limit(limit: float | str, device: torch.device) -> int:
    """Return a limit of the memory of a device in bytes.

    Args:
        limit: fraction of the memory of the device, above 0 to 1; or an amount above 0, such as
            `8GiB` or `512MB`.
        device: device of this machine.

    Raises:
        ConfigurationError: the limit is neither a fraction nor an amount, or exceeds the memory.
    """
    total = accelerator_of(device).total_memory
    limit = limit.strip() if isinstance(limit, str) else limit
    # Pydantic reads an amount as far as it can, "8,5GB" as 8 bytes.
    is_amount = re.fullmatch(r"\d*\.?\d+\s*[a-z]*b", str(limit), re.IGNORECASE) is not None
    try:
        number = TypeAdapter(ByteSize).validate_python(limit) if is_amount else float(limit)
    except ValueError:
        number = 0
    if isinstance(limit, bool) or not (number > 0 and (is_amount or number <= 1)):
        raise ConfigurationError(
            f"device_memory_limit={limit}: use a fraction of the memory above 0 to 1, as in 0.5, "
            "or an amount above 0, as in 8GiB or 512MiB"
        )
    if total is None and not is_amount:
        raise ConfigurationError(
            f"device_memory_limit={limit}: {device} does not report its memory; use an amount, as "
            "in 8GiB"
        )
    size = int(number if is_amount else number * (total or 0))
    if total is not None and size > total:
        raise ConfigurationError(
            f"device_memory_limit={limit}: {device} has only {human_bytes(total)}"
        )
    return max(size, 1)


@contextmanager
def limited_memory(device: torch.device, limit: int | None) -> Iterator[None]:
    """Limit the memory of a device that this process uses within the block, and announce it.

    The limit is in bytes, at least 1; None for no limit. `check_memory` refuses to exceed it on any
    device. On cuda, rocm, xpu and mps, torch enforces it for its allocations as well.
    """
    if limit is None:
        yield
        return
    accelerator = accelerator_of(device)
    total = accelerator.total_memory
    is_enforced = total is not None and accelerator.limit_memory(min(1.0, limit / total))
    effect = "" if is_enforced else ": only larger replays and simulators are refused"
    by_torch = f"{'' if is_enforced else 'not '}enforced by torch{effect}"
    _logger.info("device_memory_limit: %s of %s, %s", human_bytes(limit), device, by_torch)
    token = _limit.set((device, limit))
    try:
        yield
    finally:
        _limit.reset(token)
        if is_enforced:
            accelerator.limit_memory(1.0)


def free_memory(device: torch.device, limit: int | None = None) -> int | None:
    """Return the free memory of a device within its limit, in bytes; None if it is unknown.

    The limit is that of the surrounding `limited_memory`, if any, unless one is given in bytes.
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


def named(setting: str, count: int) -> str:
    """Return a count with the name of its setting, or with words for the counted things."""
    return f"{count:,} {setting}" if " " in setting else f"{setting}={count}"


def check_memory(
    needed: Callable[[int], int],
    count: int,
    device: torch.device,
    *,
    setting: str,
    purpose: str,
    minimum: int = 1,
) -> str:
    """Reject a setting that does not fit into memory.

    Every setting fits on a device that does not report its free memory and has no limit.

    Args:
        needed: function that returns the size in bytes for a count; ascending.
        count: value of the setting.
        device: device of the memory.
        setting: name of the setting, or words for the counted things, as in "frames of a file".
        purpose: user of the memory, for the message.
        minimum: smallest count that is of use.

    Returns:
        A line about the size, to log once nothing can be refused any more.

    Raises:
        ConfigurationError: the memory is insufficient; the message names the count that fits.
    """
    size, free = needed(count), free_memory(device)
    usable = None if free is None else int(_USABLE_SHARE_OF_FREE_MEMORY * free)
    if usable is not None and size > usable:
        counts = range(min(count, sys.maxsize))
        fitting = bisect.bisect_right(counts, usable, key=needed) - 1
        advice = f"{named(setting, fitting)} would fit" if fitting >= minimum else "none would fit"
        limit = _limit_of(device)
        within = "" if limit is None else f" within device_memory_limit={human_bytes(limit)}"
        raise ConfigurationError(
            f"{named(setting, count)}: {purpose} needs {human_bytes(size)} and {device} has "
            f"{human_bytes(usable)} to spare{within}; {advice}"
        )
    return f"{named(setting, count)}: {purpose} needs {human_bytes(size)} on {device}"


class limited_allocations(TorchFunctionMode):  # noqa: N801
    """Refuses, within its context, new tensors that together exceed a size in bytes.

    The error is a ConfigurationError with the message `refusal`, raised before the tensor is made.
    Tensors of functions such as `torch.empty` count.
    """

    def __init__(self, size: int, refusal: str) -> None:
        super().__init__()
        self._left = size
        self._refusal = refusal

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch; count the tensor that it makes."""
        kwargs = kwargs or {}
        if function in _FACTORIES:
            self._left -= function(*args, **{**kwargs, "device": "meta"}).nbytes
            if self._left < 0:
                raise ConfigurationError(self._refusal)
        return function(*args, **kwargs)


def human_bytes(size: float) -> str:
    """Return a number of bytes with its unit, such as 1.43 GiB."""
    if size < 1024:
        return f"{size:.0f} B"
    power = min((int(size).bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.2f} {'KMGT'[power - 1]}iB"
