"""`daybook version`."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click

from daybook.clients.cli.output import OutputFormat, output_option, write_record


@click.command()
@output_option
def version(output: OutputFormat) -> None:
    """Show the version of Daybook and of Python."""
    try:
        daybook = installed_version("daybook-mq")
    except PackageNotFoundError:
        daybook = "not installed"  # run from a source tree
    write_record({"daybook": daybook, "python": platform.python_version()}, output)
