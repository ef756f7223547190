"""How commands print: a table for people, JSON for programs.

JSON goes out as one line, so that it composes with pipes; tables are aligned and have no colours.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from daybook.clients.cli.options import OutputFormat


def write_record(record: Mapping[str, Any], output: OutputFormat) -> None:
    """One thing: its fields below each other."""
    if output == "json":
        click.echo(json.dumps(record))
        return
    width = max((len(key) for key in record), default=0)
    for key, value in record.items():
        click.echo(f"{key:<{width}}  {_text(value)}")


def write_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: OutputFormat
) -> None:
    """Many things of one kind: a line for each."""
    if output == "json":
        click.echo(json.dumps(list(rows)))
        return
    lines = [list(columns), *([_text(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
