"""The option `--picture` of commands on Spark."""

from importlib.util import find_spec
from pathlib import Path

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function

_FORMATS = (".svg", ".png")


def _picture(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn: a command may run for days before it draws."""
    del context, parameter
    if value is None:
        return None
    if value.suffix.lower() not in _FORMATS:
        raise click.BadParameter(f"{value} is neither FILE.svg nor FILE.png.")
    if not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {value.parent}.")
    if find_spec("matplotlib") is None:
        raise UserError(
            "Pictures need matplotlib, which is not installed: install it with"
            " pip install 'daybook-mq[pictures]'."
        )
    return value


def picture_option(function: Function) -> Function:
    """Add `--picture`, as `picture`."""
    return click.option(
        "--picture",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_picture,
        metavar="FILE",
        help="Draw messages per second and messages behind into FILE.svg or FILE.png, at the end"
        " and every minute.",
    )(function)
