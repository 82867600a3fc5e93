"""Output of an examination: tables for people, and a JSON object for programs."""

import json
from collections.abc import Sequence
from typing import Any

from torchrl_gpu.devices.memory import human_bytes
from torchrl_gpu.doctor.findings import Findings
from torchrl_gpu.doctor.measurements import Measured
from torchrl_gpu.tables import table


def as_text(findings: Findings, measured: Sequence[Measured]) -> str:
    """Return the results as tables."""
    width = max(map(len, findings.system))
    parts = ["\n".join(f"{name:{width}}  {v}" for name, v in findings.system.items())]
    devices = findings.devices
    capabilities = next(iter(devices.values()))
    rows = [
        [key.replace("_", " "), *(_cell(key, facts[key]) for facts in devices.values())]
        for key in capabilities
    ]
    parts.append(table(["device", *devices], rows, left=1 + len(devices)))
    if findings.absent:
        parts.append(_absences(findings))
    if measured:
        parts.append(_speeds(measured))
    return "\n\n".join(parts) + "\n"


def as_json(findings: Findings, measured: Sequence[Measured]) -> str:
    """Return the results as one line of JSON."""
    speeds: dict[str, dict[str, float | str]] = {}
    for figure in measured:
        ratio = {} if figure.ratio is None else {"times": figure.ratio}
        speeds[figure.key] = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in (figure.speeds | ratio).items()
        }
    return json.dumps(
        {
            "system": findings.system,
            "devices": findings.devices,
            "absent": {name: absence._asdict() for name, absence in findings.absent.items()},
            "unused": [card._asdict() for card in findings.unused],
            "measured": speeds,
        }
    )


def _absences(findings: Findings) -> str:
    lines = ["not available"]
    for name, (reason, advice) in findings.absent.items():
        lines.append(f"  {name:8}  {reason}")
        if advice is not None:
            lines.append(f"  {'':8}  to use it: {advice}")
    for card in findings.unused:
        lines.append(f"unused: {card.name} ({card.vendor}, driver {card.driver or 'missing'})")
    return "\n".join(lines)


def _speeds(measured: Sequence[Measured]) -> str:
    names = list(measured[0].speeds)
    header = ["measured", "unit", *names, *(["times"] if len(names) > 1 else [])]
    rows = []
    for figure in measured:
        row = [figure.title, figure.unit, *(_number(v) for v in figure.speeds.values())]
        if len(names) > 1:
            row.append("-" if figure.ratio is None else f"{figure.ratio:.2f}")
        rows.append(row)
    return table(header, rows, left=2)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "no"
    if key.endswith("memory") and isinstance(value, int):
        return human_bytes(value)
    return str(value)


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
