"""Tables as text."""

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
