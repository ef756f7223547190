"""`daybook broker`: run one broker in the foreground."""

import click

from daybook.clients.cli.part import part_options, run_part


@click.command()
@click.option("--name", help="For people.  [default: host:port]")
@click.option("--cluster", help="The name of the cluster.")
@part_options
def broker(**options: object) -> None:
    """Run one broker.

    Settings come from the file, the environment (DAYBOOK_BROKER_PORT and so on), and these options,
    the latter first.
    """
    run_part("daybook.broker", "DAYBOOK_BROKER_", options)
