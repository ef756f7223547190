"""`daybook topics properties`: texts that people and tools keep with a topic."""

from collections.abc import Sequence

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record

_pairs = click.argument("pairs", nargs=-1, required=True, metavar="NAME=VALUE...")


@click.group()
def properties() -> None:
    """Show and change the properties of a topic: texts for people and tools."""


@properties.command("get")
@click.argument("topic")
@admin_url_option
@output_option
def get(topic: str, admin_url: str, output: OutputFormat) -> None:
    """Show the properties of a TOPIC."""
    name = parse_topic(topic).full
    write_record(ask_admin(admin_url, lambda admin: admin.topic_properties(name)), output)


@properties.command("set")
@click.argument("topic")
@_pairs
@admin_url_option
@output_option
def set_(topic: str, pairs: Sequence[str], admin_url: str, output: OutputFormat) -> None:
    """Set properties of a TOPIC.  Properties with other names stay as they are."""
    name, found = parse_topic(topic).full, parse_properties(pairs)
    ask_admin(admin_url, lambda admin: admin.set_topic_properties(name, found), changes=True)
    write_record({"topic": name, **found}, output)


@properties.command("remove")
@click.argument("topic")
@click.argument("name")
@admin_url_option
@output_option
def remove(topic: str, name: str, admin_url: str, output: OutputFormat) -> None:
    """Remove the property NAME of a TOPIC."""
    full = parse_topic(topic).full
    ask_admin(admin_url, lambda admin: admin.remove_topic_property(full, name), changes=True)
    write_record({"topic": full, "removed": name}, output)


def parse_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties that are written as NAME=VALUE.  Raise click.BadParameter."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is no property: write NAME=VALUE.")
        found[name] = value
    return found
