"""Print the result of a command: a table for people, JSON for programs.

JSON is written as one line, so that it can be piped.  Tables are aligned and have no colours.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import click

OutputFormat: TypeAlias = Literal["table", "json"]
_Function = TypeVar("_Function", bound=Callable[..., object])


def output_option(function: _Function) -> _Function:
    """Add `--output table|json`, as the parameter `output`."""
    option = click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table for people, or JSON for programs.",
    )
    return option(function)


def write_record(record: Mapping[str, Any], output: OutputFormat) -> None:
    """Print one record: each field on a line."""
    if output == "json":
        click.echo(json.dumps(record))
        return
    width = max((len(key) for key in record), default=0)
    for key, value in record.items():
        click.echo(f"{key:<{width}}  {_text(value)}")


def counted(count: int, what: str) -> str:
    """Return a number and a noun, in its plural if it needs one: `1 topic`, `1,000 topics`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def write_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: OutputFormat
) -> None:
    """Print several records of one kind: each on a line."""
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
