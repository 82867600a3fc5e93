"""Report of a run's time and transfers, as text and as plain values."""

from __future__ import annotations

from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.devices.memory import human_bytes
from torchrl_gpu.tables import table
from trainers.profiling import Profile


def transfers(collector: BatchCollector) -> dict[str, dict[str, float]]:
    """Return the copies and bytes of a batched step in each direction, as means over all steps."""
    steps = max(1, collector.steps)
    directions = {"to_device": collector.to_device, "to_host": collector.to_host}
    return {
        name: {
            "copies_per_step": transfer.copies / steps,
            "bytes_per_step": transfer.bytes / steps,
        }
        for name, transfer in directions.items()
    }


def transfers_line(collector: BatchCollector) -> str:
    """Return the transfers of a batched step as one line of text."""
    directions = transfers(collector)
    if not any(values["copies_per_step"] for values in directions.values()):
        return "none: environment and policy are on one device"
    texts = [
        f"{values['copies_per_step']:.3g} {name.replace('_', ' the ')} "
        f"({human_bytes(values['bytes_per_step'])})"
        for name, values in directions.items()
    ]
    return f"{' and '.join(texts)} per batched step"


def profile_table(profile: Profile) -> str:
    """Return the time of each part of a training as a table."""
    amount, rows = profile.amount, []
    for part, seconds in {**profile.seconds(), "all": amount.seconds}.items():
        per_unit = [
            _duration(seconds / count) if count else "-"
            for count in (amount.frames, amount.updates)
        ]
        rows.append([part, f"{seconds:.2f}", f"{seconds / amount.seconds:.1%}", *per_unit])
    return table(["part", "seconds", "share", "per frame", "per update"], rows)


def _duration(seconds: float) -> str:
    """Return a duration with three digits, in s, ms or us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
