"""`daybook pipeline`: whole jobs around topics, on Spark."""

import click

from daybook.clients.cli.archives import archive


@click.group()
def pipeline() -> None:
    """Run whole jobs around topics on Spark: archives."""


pipeline.add_command(archive)
