"""The commands `torchrl-gpu compare RUN...` and `torchrl-gpu report RUN`. See their `--help`."""

import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from pydantic import Field

from torchrl_gpu.checkpoints.files import new_file, write_text
from torchrl_gpu.commands import asks_for_help, read_arguments, show
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import table
from trainers.comparing.groups import cut, grouped, improvements, over_environments
from trainers.comparing.page import page
from trainers.comparing.results import Results
from trainers.comparing.runs import read_runs

_SETTINGS = """\
  output        the page, a new .html file (default: {name}.html, or {name}_2.html and so on, in the
                working directory)
  success       success rate of an evaluation that counts as solved, above 0 to 1 (0.95)
  mean_return   the same where an environment reports no success, in units of return (none)

The page is one file, for any browser, without a network. Films of the runs are in it up to 4 MiB,
and linked beyond.\
"""

COMPARE = f"""\
Compare runs: a table in the terminal, and a page.

  torchrl-gpu compare runs/fanuc/sac                    all runs in a folder
  torchrl-gpu compare runs/fanuc success=0.9 output=fanuc.html
  torchrl-gpu compare RUN RUN ...                       run folders

Runs with equal settings but the seed form a group. Each environment has a separate table:
interquartile mean of the final scores with its 95 % bootstrap interval, frames and seconds to a
success, probability of improvement, settings that differ.

{_SETTINGS.format(name="compare")}"""

REPORT = f"""\
Show one run: its result in the terminal, and a page with all its metrics and settings.

  torchrl-gpu report runs/fanuc/sac/20261125_214737

{_SETTINGS.format(name="report")}"""


def compare(arguments: Sequence[str]) -> int:
    """Compare runs, or print the help; return the exit code."""
    return _main(arguments, COMPARE, "compare")


def report(arguments: Sequence[str]) -> int:
    """Report on one run, or print the help; return the exit code."""
    return _main(arguments, REPORT, "report")


def _main(arguments: Sequence[str], usage: str, name: str) -> int:
    if asks_for_help(arguments):
        show(usage)
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    typed = [each for each in arguments if "=" in each and not Path(each).is_dir()]
    paths = [Path(each) for each in arguments if each not in typed]
    settings = read_arguments(write_page, typed, given=("paths", "name"))
    show(write_page(paths, name, **settings))
    return 0


def write_page(
    paths: Sequence[Path],
    name: str,
    output: Path | None = None,
    success: Annotated[float, Field(gt=0, le=1)] = 0.95,
    mean_return: float | None = None,
) -> str:
    """Write the page on runs, and return the tables for the terminal."""
    if not paths:
        raise ConfigurationError(f"a run folder is missing: torchrl-gpu {name} runs/...")
    if output is not None and output.suffix != ".html":
        raise ConfigurationError(f"output={output}: name a .html file")
    if output is not None and output.exists():
        raise ConfigurationError(f"output={output}: this file exists; delete it, or name another")
    runs = read_runs(paths)
    if name == "report" and len(runs) > 1:
        raise ConfigurationError(
            f"{paths[0]}: a report is on one run, and there are {len(runs)}; name one of them, or "
            "write torchrl-gpu compare"
        )
    groups = grouped(runs)
    found = [Results(env, each, success, mean_return) for env, each in groups.items()]
    if overall := over_environments(groups):
        found.append(Results("all environments", overall))
    envs = ", ".join(groups)
    title = f"{runs[0].agent} in {envs}" if len(runs) == 1 else f"{len(runs)} runs in {envs}"
    with nullcontext(output) if output else new_file(Path(f"{name}.html")) as file:
        text = page(title, found, file)
        write_text(file, text.encode(errors="replace").decode())  # a path may not be UTF-8
    return "\n\n".join([*map(_text, found), f"page: {file}"])


def _text(results: Results) -> str:
    """Return the tables of one environment."""
    groups = results.groups
    header, rows = results.table()
    named = [[group.name, *row] for group, row in zip(groups, rows, strict=True)]
    parts = [table([results.env, *header], named)]
    if pairs := improvements(groups):
        cells = [(p.label, f"{p.value:.2f}", _interval(p.low, p.high)) for p in pairs]
        parts.append(table(["comparison", "probability", "95 % interval"], cells))
    if not results.is_overall and (common := results.settings[0]):
        header = ["setting", *(group.short_name for group in groups)]
        rows = [[name, *map(cut, values)] for name, *values in common]
        parts.append(table(header, rows, left=len(header)))
    return "\n\n".join(parts)


def _interval(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}" if math.isfinite(low) else "-"
