"""Report of a run's time and transfers, as text and as plain values."""

from __future__ import annotations

from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.devices.memory import human_bytes
from trainers.profiling.profile import Profile


def transfers(collector: BatchCollector) -> dict[str, dict[str, float]]:
    """Return the copies and bytes of a batched step in each direction, as means over all steps.

    Args:
        collector: collector of the training.
    """
    steps = max(1, collector.steps)
    directions = {
        "to_device": collector.to_device,
        "to_host": collector.to_host,
    }
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


def profile_lines(profile: Profile) -> list[str]:
    """Return the time of each part of a training as the lines of a table."""
    amount, parts = profile.amount, profile.seconds()
    lines = [_row("part", "seconds", "share", "per frame", "per update")]
    for part, seconds in {**parts, "all": amount.seconds}.items():
        per_unit = [
            _duration(seconds / count) if count else "-"
            for count in (amount.frames, amount.updates)
        ]
        lines.append(_row(part, f"{seconds:.2f}", f"{seconds / amount.seconds:.1%}", *per_unit))
    return lines


def _row(part: str, *cells: str) -> str:
    return f"{part:10}" + "".join(f"{cell:>12}" for cell in cells)


def _duration(seconds: float) -> str:
    """Return a duration with three digits, in s, ms or us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
