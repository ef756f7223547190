"""The group `daybook pipeline`: whole jobs around topics, which Spark carries out."""

import click

from daybook.clients.cli.archives import archive, compact_archive, replay
from daybook.clients.cli.streams import copy, mirror, run


@click.group()
def pipeline() -> None:
    """Run whole jobs around topics on Spark: configured pipelines, copies, mirrors, archives."""


for command in (run, copy, mirror, archive, compact_archive, replay):
    pipeline.add_command(command)
