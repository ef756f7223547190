"""`daybook topics lookup`: which broker serves a topic."""

from collections.abc import Mapping
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.many_topics import ask_many, show_failures
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.wire.topics import TopicName

_COLUMNS = ("topic", "broker", "admin", "bundle")


@click.command()
@click.argument("topic")
@admin_url_option
@output_option
def lookup(topic: str, admin_url: str, output: OutputFormat) -> None:
    """Show which broker serves a TOPIC, and the bundle that the topic is in.

    Each partition of a topic with partitions is a line.  The question does not load the topic, but
    it gives the bundle to a broker if no broker has it.
    """
    name = parse_topic(topic)

    count = 0
    if name.persistent and name.partition < 0:
        # A lookup answers for any name, so a topic that does not exist has to be found here.
        count = ask_admin(admin_url, lambda admin: admin.partitions(name.full))
    if not count:
        write_record(ask_admin(admin_url, lambda admin: _row(admin, name.full)), output)
        return
    names = [name.partition_name(index).full for index in range(count)]
    outcomes = ask_many(admin_url, "Looking up partitions", names, _row)
    write_rows(list(outcomes.done.values()), _COLUMNS, output)
    show_failures(outcomes)


async def _row(admin: Admin, full: str) -> dict[str, object]:
    topic = TopicName.parse(full)
    found: Mapping[str, Any] = await admin.lookup(topic.full)
    path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{topic.encoded}/bundle"
    bundle = await admin.call("GET", path)
    return {
        "topic": topic.full,
        "broker": found.get("brokerUrl") or found.get("brokerUrlTls"),
        "admin": found.get("httpUrl") or found.get("httpUrlTls") or None,
        "bundle": f"{topic.namespace}/{bundle}",
    }
