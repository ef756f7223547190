"""`daybook topics policies`: show and change the policies of one topic."""

import click

from daybook.clients.cli import policies as named
from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.policy_words import words

_COLUMNS = ("policy", "value")


@click.group()
def policies() -> None:
    """Show and change policies of one topic, which go over those of its namespace."""


@policies.command("get")
@click.argument("topic")
@click.argument("policy", required=False)
@click.option("--applied", is_flag=True, help="Show what counts, wherever it is set.")
@admin_url_option
@output_option
def get(
    topic: str, policy: str | None, applied: bool, admin_url: str, output: OutputFormat
) -> None:
    """Show what a TOPIC says about a POLICY, or about all of them."""
    full = parse_topic(topic).full
    names = [policy] if policy else [n for n, p in named.POLICIES.items() if p.topic]
    rows: list[dict[str, object]] = []
    for each in names:
        found, path = named.find(each, "topic")
        shown = found.shown(path)
        answer = ask_admin(
            admin_url,
            lambda admin, p=shown: admin.topic_policy(full, p, applied=applied),  # type: ignore[misc]
        )
        value = found.chosen(answer)
        if value is not None or policy:
            shown_value = value if output == "json" else words(each, value)
            rows.append({"policy": each, "value": shown_value})
    write_rows(rows, _COLUMNS, output)


@policies.command("set", help=f"Set a POLICY of a TOPIC.\n\n{named.listing('topic')}")
@click.argument("topic")
@click.argument("policy")
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
@admin_url_option
@output_option
def set_(
    topic: str, policy: str, values: tuple[str, ...], admin_url: str, output: OutputFormat
) -> None:
    full = parse_topic(topic).full
    found, path = named.find(policy, "topic")
    value = named.parse(policy, found, values)
    ask_admin(
        admin_url,
        lambda admin: admin.set_topic_policy(full, path, value, kind=found.kind),
        changes=True,
    )
    shown_value = value if output == "json" else words(policy, value)
    write_record({"topic": full, "policy": policy, "value": shown_value}, output)


@policies.command("remove")
@click.argument("topic")
@click.argument("policy")
@admin_url_option
@output_option
def remove(topic: str, policy: str, admin_url: str, output: OutputFormat) -> None:
    """Remove a POLICY of a TOPIC, so that the one of its namespace counts."""
    full = parse_topic(topic).full
    found, path = named.find(policy, "topic")
    ask_admin(
        admin_url,
        lambda admin: admin.set_topic_policy(full, path, None, kind=found.kind),
        changes=True,
    )
    write_record({"topic": full, "policy": policy, "value": None}, output)
