"""Report of an examination: tables for people, and a JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from torchrl_gpu.doctor.findings import Findings
from torchrl_gpu.doctor.measurements import Measured
from torchrl_gpu.tables import table

_ROWS: Final = {
    "name": "name",
    "driver": "driver",
    "total_memory": "memory",
    "free_memory": "free memory",
    "float64": "float64",
    "autocast": "autocast",
    "tf32": "tf32",
    "fused_adam": "fused Adam",
    "foreach_adam": "foreach Adam",
    "capturable_adam": "Adam in a graph",
    "graphs": "graphs",
    "compile": "compile",
    "pinned_transfers": "pinned transfers",
    "own_generator": "own generator",
    "genesis_backend": "Genesis backend",
}


def as_text(findings: Findings, measured: Sequence[Measured]) -> str:
    """Return the report as tables."""
    width = max(map(len, findings.system))
    parts = ["\n".join(f"{name:{width}}  {v}" for name, v in findings.system.items())]
    names = list(findings.devices)
    rows = [
        [title, *(_cell(key, findings.devices[name][key]) for name in names)]
        for key, title in _ROWS.items()
    ]
    parts.append(table(["device", *names], rows, left=1 + len(names)))
    if findings.absent:
        parts.append(_absences(findings))
    if measured:
        parts.append(_speeds(measured))
    return "\n\n".join(parts) + "\n"


def as_json(findings: Findings, measured: Sequence[Measured]) -> str:
    """Return the report as one line of JSON."""
    speeds = {
        m.key: {**m.speeds, **({} if m.ratio is None else {"times": round(m.ratio, 2)})}
        for m in measured
    }
    return json.dumps(
        {
            "system": findings.system,
            "devices": findings.devices,
            "absent": {name: absence._asdict() for name, absence in findings.absent.items()},
            "unused": [card._asdict() for card in findings.unused],
            "measured": {
                key: {n: float(f"{v:.4g}") if isinstance(v, float) else v for n, v in s.items()}
                for key, s in speeds.items()
            },
        }
    )


def _absences(findings: Findings) -> str:
    lines = ["not here"]
    for name, (reason, advice) in findings.absent.items():
        lines.append(f"  {name:8}  {reason}")
        if advice is not None:
            lines.append(f"  {'':8}  to get it: {advice}")
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
        return f"{value / 2**30:.1f} GiB"
    return str(value)


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
