"""A table in a Markdown document, kept up to date row by row.

It stands between the lines `<!-- table -->` and `<!-- end of table -->`; the text around it is left
alone.  The first cell of a row is its name: a new row replaces the old one of that name, the others
stay, and rows whose name is no longer in the order are dropped.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
_SEPARATOR = " | "

Row = tuple[str, ...]


def aligned(rows: Sequence[Row], *, right: Iterable[int] = ()) -> str:
    """Format rows as a table; the first is the head, the columns in `right` are numbers."""
    to_the_right = set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    lines: list[str] = []
    for row in (rows[0], rule, *rows[1:]):
        cells = [
            cell.rjust(width) if column in to_the_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {_SEPARATOR.join(cells)} |\n")
    return "".join(lines)


def rows_of(document: Path) -> dict[str, Row]:
    """Return the rows in the document, by name."""
    table = document.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [
        tuple(map(str.strip, line.removeprefix("| ").removesuffix(" |").split(_SEPARATOR)))
        for line in table.splitlines()[2:]
    ]
    return {row[0]: row for row in rows}


def update(
    document: Path,
    head: Row,
    rows: Iterable[Row],
    *,
    order: Iterable[str],
    right: Iterable[int] = (),
) -> dict[str, Row]:
    """Put these rows into the document; return all of its rows, by name."""
    known = rows_of(document) | {row[0]: row for row in rows}
    kept = {name: known[name] for name in order if name in known}
    before, _, rest = document.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    table = aligned([head, *kept.values()], right=right)
    document.write_text(f"{before}{BEGIN}{table}{END}{after}")
    return kept
