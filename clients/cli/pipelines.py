"""`daybook pipeline`: whole jobs around topics, on Spark."""

import click

from daybook.clients.cli.archives import archive, compact_archive, replay


@click.group()
def pipeline() -> None:
    """Run whole jobs around topics on Spark: archives and replays."""


for command in (archive, compact_archive, replay):
    pipeline.add_command(command)
