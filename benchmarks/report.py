"""Output of benchmarks: a table for people and a JSON object for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column aligned to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    for line in (header, ["-" * width for width in widths], *rows):
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]), flush=True)


def print_machine() -> None:
    """Print a description of the machine."""
    print(
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} torch thread(s)\n"
    )


def print_figures(figures: Mapping[str, Any]) -> None:
    """Print the last line: all figures as one JSON object."""
    print(json.dumps(figures), flush=True)
