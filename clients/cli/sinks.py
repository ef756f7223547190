"""`daybook sinks`: exactly-once batches: what is under way, and decisions about it."""

from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.wire.topics import url_encode

_LISTED = ("sink", "state", "batch", "rows", "partitions", "query", "checkpoint", "role")
_PARTITIONS = ("topic", "state", "next sequence", "reason")
_ROOT = "/admin/v2/daybook/sinks"
_WAIT_S = "10"


@click.group()
def sinks() -> None:
    """Show the batches of exactly-once sinks, and decide about those that are blocked.

    A SINK is the name that a Spark query writes under.
    """


def _path(sink: str, action: str = "") -> str:
    return f"{_ROOT}/{url_encode(sink)}{action}"


@sinks.command("list")
@admin_url_option
@output_option
def list_(admin_url: str, output: OutputFormat) -> None:
    """List the sinks, with the last batch of each."""
    found: list[dict[str, Any]] = ask_admin(admin_url, lambda admin: admin.call("GET", _ROOT))
    rows = [
        {
            "sink": each["name"],
            "state": each["state"],
            "batch": each["batchId"],
            "rows": each["rows"],
            "partitions": len(each["partitions"]),
            "query": each["queryId"],
            "checkpoint": each["checkpoint"],
            "role": each.get("role", ""),  # Brokers of an older release do not tell it.
        }
        for each in found
    ]
    write_rows(rows, _LISTED, output)


@sinks.command()
@click.argument("sink")
@admin_url_option
@output_option
def show(sink: str, admin_url: str, output: OutputFormat) -> None:
    """Show a SINK: its last batch, and how far each topic partition is."""
    _write(ask_admin(admin_url, lambda admin: admin.call("GET", _path(sink))), output)


def _write(found: dict[str, Any], output: OutputFormat) -> None:
    if output == "json":
        write_record(found, output)
        return
    write_record({name: value for name, value in found.items() if name != "partitions"}, output)
    rows = [
        {
            "topic": each["topic"],
            "state": each["state"],
            "next sequence": each["next"],
            "reason": each["reason"],
        }
        for each in found["partitions"]
    ]
    if rows:
        click.echo()
        write_rows(rows, _PARTITIONS, output)


@sinks.command("roll-forward")
@click.argument("sink")
@admin_url_option
@output_option
def roll_forward(sink: str, admin_url: str, output: OutputFormat) -> None:
    """Apply the committed batch of a SINK now, and show how far it is after 10 s at most.

    The brokers do so by themselves; this command does not wait for their next look.
    """

    async def ask(admin: Admin) -> dict[str, Any]:
        path = _path(sink, "/roll-forward")
        found: dict[str, Any] = await admin.call("POST", path, query={"waitS": _WAIT_S})
        return found

    _write(ask_admin(admin_url, ask, changes=True), output)


@sinks.command()
@click.argument("sink")
@yes_option
@admin_url_option
def forget(sink: str, yes: bool, admin_url: str) -> None:
    """Let another query write to a SINK: the query that has it must never run again.

    The topics keep what they have.  The next batch may have any number.
    """
    confirm(
        f"The brokers forget which batches of the sink {sink} they have. If its query runs again,"
        " it is a new one, and what it writes again is there twice. Forget it?",
        yes=yes,
    )
    ask_admin(admin_url, lambda admin: admin.call("POST", _path(sink, "/forget")), changes=True)
    click.echo(f"The sink {sink} belongs to no query.")


@sinks.command()
@click.argument("sink")
@click.option("--checkpoint", required=True, metavar="PATH", help="The path as the query names it.")
@admin_url_option
def move(sink: str, checkpoint: str, admin_url: str) -> None:
    """Follow the query of a SINK to another checkpoint path.

    The checkpoint was moved there, and no query runs from its old place any more.
    """
    body = {"checkpoint": checkpoint}
    ask_admin(admin_url, lambda admin: admin.call("POST", _path(sink, "/move"), body), changes=True)
    click.echo(f"The sink {sink} belongs to the checkpoint {checkpoint}.")


@sinks.command()
@click.argument("sink")
@click.option("--skip-partition", metavar="TOPIC", help="Give up the rest of it in this partition.")
@click.option("--abandon", is_flag=True, help="Give up the rest of it in all partitions.")
@yes_option
@admin_url_option
@output_option
def resolve(
    sink: str,
    skip_partition: str | None,
    abandon: bool,
    yes: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Decide about a batch of a SINK that is BLOCKED: a topic of it was terminated or deleted."""
    if bool(skip_partition) == abandon:
        raise click.UsageError("Give either --skip-partition or --abandon.")
    where = f"in {skip_partition}" if skip_partition else "in all topic partitions"
    confirm(
        f"What is missing of the last batch of the sink {sink} {where} will never be there. Give it"
        " up?",
        yes=yes,
    )
    body = {"abandon": True} if abandon else {"skipPartition": skip_partition}
    _write(
        ask_admin(
            admin_url, lambda admin: admin.call("POST", _path(sink, "/resolve"), body), changes=True
        ),
        output,
    )
