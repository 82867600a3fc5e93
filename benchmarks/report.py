"""Output of benchmarks: tables and pictures for people, and a JSON object for programs."""

from __future__ import annotations

import functools
import importlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.extras import check_extra
from torchrl_gpu.tables import table
from trainers.runs.versions import versions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figures = Mapping[str, Any]


class FiguresError(Exception):
    """Ends a benchmark with 1: its figures fail."""

    def __init__(self, figures: Figures) -> None:
        super().__init__("the figures fail")
        self.figures = figures


def main(benchmark: Callable[..., Figures]) -> NoReturn:
    """Run a benchmark by the arguments of this process; its figures are the last line, as JSON."""

    @functools.wraps(benchmark)
    def command(**arguments: Any) -> int:
        try:
            figures, code = benchmark(**arguments), 0
        except FiguresError as failure:
            figures, code = failure.figures, 1
        print(json.dumps(figures), flush=True)
        return code

    sys.exit(call_with_arguments(command))


def require(*packages: str) -> None:
    """Check that packages of the extra `benchmark` are installed.

    A benchmark calls this first and imports the packages where it uses them, so that its module can
    be imported and its `--help` printed without them.

    Args:
        packages: import names of the packages.

    Raises:
        ConfigurationError: a package is not installed; the message names the extra.
    """
    check_extra("this benchmark", "benchmark", *packages)


def machine() -> str:
    """Return the commit of the code, the processor, and the versions of the packages."""
    found = versions()
    library, commit = found.pop("torchrl-gpu", "torchrl-gpu"), found.pop("commit", None)
    packages = ", ".join(f"{name} {version}" for name, version in found.items())
    return (
        f"{f'commit {commit}' if commit else library}, {num_cores()} cores, {_processor()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    """Return the processor's name, with the widest vectors that torch uses on it."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    return f"{name} with {torch.backends.cpu.get_cpu_capability()}"


def print_machine() -> None:
    """Print the description of the machine and its software, and the number of threads."""
    print(f"{machine()}, {torch.get_num_threads()} torch thread(s)\n", flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column aligned to the left, the others to the right."""
    print(table(header, rows), end="\n\n", flush=True)


@contextmanager
def picture(
    path: Path, panels: int, columns: int = 3, size: tuple[float, float] = (5.0, 4.0)
) -> Iterator[Sequence[Axes]]:
    """Give the panels of a picture to draw in, and write its file at the end.

    Args:
        path: file to write.
        panels: number of panels.
        columns: maximum number of panels side by side.
        size: width and height of a panel in inches.
    """
    plt = importlib.import_module("matplotlib.pyplot")
    columns = min(columns, panels)
    rows = -(-panels // columns)
    width, height = size
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False
    )
    for panel in axes.flat[panels:]:
        panel.set_visible(False)
    yield axes.flat[:panels]
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
