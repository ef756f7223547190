"""`daybook brokers`: the brokers with their loads, draining one, the decisions of the leader."""

from datetime import UTC, datetime
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.options import admin_url_option, client_arguments
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.wire.topics import url_encode

_LISTED = ("broker", "leads", "bundles", "loaded topics", "load", "reported")
_LOADS = (
    "broker",
    "load",
    "bundles",
    "loaded topics",
    "producers",
    "consumers",
    "messages in/s",
    "messages out/s",
    "bytes in/s",
    "bytes out/s",
    "reported",
)
_DECISIONS = ("time", "decision", "bundle", "from", "to", "outcome", "reason")
_PLAN = ("bundle", "to")


@click.group()
def brokers() -> None:
    """List brokers and their loads, drain one, and show why bundles moved.

    A BROKER is written HOST:PORT, with its HTTP port, as `daybook brokers list` shows it.
    """


async def _rows(admin: Admin) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await admin.call("GET", "/admin/v2/daybook/brokers")
    return found


@brokers.command("list")
@admin_url_option
@output_option
def list_(admin_url: str, output: OutputFormat) -> None:
    """List the live brokers, and which of them leads.

    The loaded topics and the load are those that each broker has reported, at the time in the last
    column.  A broker reports again when its load has changed by a tenth, or after a while.
    """
    rows = [
        {
            "broker": each["broker"],
            "leads": "yes" if each["leads"] else "",
            "bundles": each["bundles"],
            "loaded topics": each["topics"] if each["reportedMs"] else None,
            "load": each["load"],
            "reported": _reported(each),
        }
        for each in ask_admin(admin_url, _rows)
    ]
    write_rows(rows, _LISTED, output)


@brokers.command()
@admin_url_option
@output_option
def load(admin_url: str, output: OutputFormat) -> None:
    """Show what each broker carries, as it has reported at the time in the last column.

    Topics that are not loaded are not counted.  The rates are means of a whole minute, and a broker
    reports again when its load has changed by a tenth, so they lag behind by some minutes.
    """
    rows: list[dict[str, object]] = []
    for each in ask_admin(admin_url, _rows):
        row = {"broker": each["broker"], "load": each["load"], "bundles": each["bundles"]}
        if each["reportedMs"]:  # Otherwise nothing of this is known.
            row["loaded topics"] = each["topics"]
            row["producers"], row["consumers"] = each["producers"], each["consumers"]
            row["messages in/s"] = round(each["msgRateIn"], 1)
            row["messages out/s"] = round(each["msgRateOut"], 1)
            row["bytes in/s"] = round(each["msgThroughputIn"])
            row["bytes out/s"] = round(each["msgThroughputOut"])
        row["reported"] = _reported(each)
        rows.append({column: row.get(column) for column in _LOADS})
    write_rows(rows, _LOADS, output)


@brokers.command()
@admin_url_option
@output_option
def decisions(admin_url: str, output: OutputFormat) -> None:
    """Show which bundles the leader has moved or split, why, and what it thinks now.

    A decision that is being carried out has the outcome "under way".  Moves that an operator has
    begun are no decisions of the leader: `daybook bundles list` shows them.
    """

    async def ask(admin: Admin) -> dict[str, Any]:
        leader = await admin.leader_broker()
        url = leader["serviceUrl"]
        of_leader = Admin(url, **client_arguments(admin_url, url))
        found: dict[str, Any] = await of_leader.call("GET", "/admin/v2/daybook/balance")
        return found

    found = ask_admin(admin_url, ask)
    if output == "json":
        write_record(found, output)
        return
    now: dict[str, Any] = {**found["now"], "outcome": "dry run" if found["dryRun"] else "now"}
    rows = [
        {
            "time": _time(each["timeMs"]),
            "decision": each["decision"],
            "bundle": each["bundle"],
            "from": each["source"],
            "to": each["target"],
            "outcome": each["outcome"],
            "reason": each["reason"],
        }
        for each in [*found["decisions"], now]
    ]
    write_rows(rows, _DECISIONS, output)


@brokers.command()
@click.argument("broker")
@click.option("--dry-run", is_flag=True, help="Say where the bundles would go, and move none.")
@admin_url_option
@output_option
def drain(broker: str, dry_run: bool, admin_url: str, output: OutputFormat) -> None:
    """Let a BROKER hand all of its bundles over, before it is stopped.

    It begins at once and goes on after this command: `daybook brokers list` no longer shows the
    broker, and `daybook bundles list` shows what it still has.  The broker serves topics again only
    after a new start.
    """
    path = f"/admin/v2/daybook/brokers/{url_encode(broker)}/drain"
    plan: dict[str, str] = ask_admin(
        admin_url,
        lambda admin: admin.call("POST", path, query={"dryRun": dry_run}),
        changes=not dry_run,
    )
    if not plan and output == "table":
        click.echo(
            f"{broker} has no bundles to hand over."
            + ("" if dry_run else "  It takes no more until it is started again.")
        )
        return
    write_rows([{"bundle": each, "to": plan[each]} for each in sorted(plan)], _PLAN, output)


def _reported(row: dict[str, Any]) -> str:
    return _time(row["reportedMs"]) if row["reportedMs"] else "never"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
