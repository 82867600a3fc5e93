"""Answer to the question whether a machine has a kind of device."""

from __future__ import annotations

from typing import Final, NamedTuple

# Reason of a kind that this build of torch has.
NO_GPU: Final = "no GPU or no driver"


class Presence(NamedTuple):
    """Devices of one kind that this machine can compute on.

    Attributes:
        number: number of devices.
        reason: short reason why there is none, such as `no GPU answers`; empty if there is one.
    """

    number: int
    reason: str = ""
