"""Output of benchmarks: a table for people and a JSON object for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchrl_gpu.tables import table


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column aligned to the left, the others to the right."""
    print(table(header, rows), flush=True)


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
