"""Tables, numbers of things and durations as text."""

import itertools
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table as lines of text, the columns as wide as their longest cells.

    Args:
        header: name of each column.
        rows: cells of each row, as many as columns.
        left: number of columns aligned to the left; the others are aligned to the right.
    """
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    lines = (header, ["-" * width for width in widths], *rows)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def counted(number: int, thing: str) -> str:
    """Return a number of things, named in the singular: `1 episode`, `1,000 episodes`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def human_time(seconds: float) -> str:
    """Return a readable duration: `45 s`, `2 min 01 s`, `3 h 05 min`, `2 d 04 h`."""
    whole = round(seconds)
    units = [(24 * 3600, "d"), (3600, "h"), (60, "min"), (1, "s")]
    for (size, unit), (part_size, part) in itertools.pairwise(units):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part_size:02d} {part}"
    return f"{whole} s"
