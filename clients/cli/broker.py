"""`daybook broker`: run one broker in the foreground."""

import click

from daybook.clients.cli.service import run_service, service_options


@click.command()
@click.option("--name", help="A name for logs and tables.  [default: host:port]")
@click.option("--cluster", help="The name of the cluster.")
@service_options
def broker(**options: object) -> None:
    """Run one broker.

    An option wins over the environment (DAYBOOK_BROKER_PORT and so on), and the environment wins
    over the settings file.
    """
    run_service("daybook.broker", "DAYBOOK_BROKER_", options)
