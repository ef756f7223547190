"""`daybook bundles`: which broker serves which part of a namespace; moving and splitting parts."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace
from daybook.clients.cli.bundle_loads import (
    BundleOwner,
    bundle_owners,
    carried_by,
    loads_of,
    owners_of,
)
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.not_found import hint
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import AdminError
from daybook.wire.topics import url_encode

_LISTED = ("bundle", "broker")
_CARRIED = ("loaded topics", "messages in/s", "messages out/s")
_MOVING = ("moving to", "moving since")
_ALGORITHMS = {"range": "range_equally_divide", "topics": "topic_count_equally_divide"}


@click.group()
def bundles() -> None:
    """List, move and split bundles, the parts of a namespace.

    A bundle is a range of hashes of topics, such as 0x00000000_0x40000000, and one broker serves
    it.  A NAMESPACE is written TENANT/NAME.
    """


def _path(namespace: str, bundle: str = "") -> str:
    return f"/admin/v2/namespaces/{namespace}" + (f"/{url_encode(bundle)}" if bundle else "")


@bundles.command("list")
@click.argument("namespace", default="public/default")
@admin_url_option
@output_option
def list_(namespace: str, admin_url: str, output: OutputFormat) -> None:
    """List the bundles of a NAMESPACE with the brokers that serve them, and what they carry.

    Topics that are not loaded are not counted.  The rates are means of the last whole minute, so
    they lag behind by up to two.  A - is shown if a broker does not answer.

    A bundle that its broker hands over has the next broker, and the time at which that began, in
    two further columns.  Its loaded topics are those that the first broker still has.
    """
    name = parse_namespace(namespace)

    async def ask(admin: Admin) -> tuple[dict[str, BundleOwner], dict[str, Mapping[str, Any]]]:
        owners = await bundle_owners(admin, name)
        return owners, await loads_of(admin_url, {each.broker for each in owners.values()} - {""})

    owners, loads = ask_admin(admin_url, ask)
    rows: list[dict[str, object]] = []
    for bundle, owner in owners.items():
        stats = carried_by(bundle, owner.broker, name, loads)
        row: dict[str, object] = {"bundle": bundle, "broker": owner.broker}
        row["loaded topics"] = None if stats is None else stats.get("topics", 0)
        row["messages in/s"] = None if stats is None else round(stats.get("msgRateIn", 0.0), 1)
        row["messages out/s"] = None if stats is None else round(stats.get("msgRateOut", 0.0), 1)
        row["moving to"] = owner.moving_to or None
        row["moving since"] = None if owner.since_ms is None else _time(owner.since_ms)
        rows.append(row)
    moving = _MOVING if any(each.moving_to for each in owners.values()) else ()
    write_rows(rows, (*_LISTED, *_CARRIED, *moving), output)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


@bundles.command()
@click.argument("namespace")
@click.argument("bundle")
@click.option(
    "--by",
    type=click.Choice(list(_ALGORITHMS)),
    default="topics",
    show_default=True,
    help="range: half of the range on each side. topics: half of the topics that are loaded, which"
    " must be two or more.",
)
@click.option("--dry-run", is_flag=True, help="Say which broker would split it, and how.")
@admin_url_option
@output_option
def split(
    namespace: str, bundle: str, by: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Split a BUNDLE of a NAMESPACE in two.  Its topics are served all the time."""
    name = parse_namespace(namespace)
    if dry_run:
        would = "yes" if by == "range" else "if two of its topics or more are loaded"
        _would(name, bundle, "split", would, admin_url, output)
        return
    query: dict[str, bool | str] = {"splitAlgorithmName": _ALGORITHMS[by]}

    async def ask(admin: Admin) -> None:
        try:
            await admin.call("PUT", f"{_path(name, bundle)}/split", query=query)
        except AdminError as error:
            if by == "range" or "cannot be split" not in str(error):
                raise
            raise UserError(f"{error}. `--by range` halves the range instead.") from error

    ask_admin(admin_url, ask, changes=True)
    write_record({"bundle": f"{name}/{bundle}", "split": "yes"}, output)


@bundles.command()
@click.argument("namespace")
@click.argument("bundle", required=False, default="")
@click.option("--dry-run", is_flag=True, help="Say which broker serves it, and change nothing.")
@admin_url_option
@output_option
def unload(
    namespace: str, bundle: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Let the owner of a BUNDLE hand it to the broker with the fewest bundles.

    Without a BUNDLE, all of the NAMESPACE are handed over.
    """
    name = parse_namespace(namespace)
    if dry_run:
        _would(name, bundle, "unload", "", admin_url, output)
        return
    if not bundle:
        ask_admin(admin_url, lambda admin: admin.unload_namespace(name), changes=True)
        write_record({"bundle": name, "unloaded": "yes"}, output)
        return
    before, after = ask_admin(
        admin_url, lambda admin: _hand_over(admin, name, bundle), changes=True
    )
    write_record({"bundle": f"{name}/{bundle}", "from": before, "broker": after or None}, output)


@bundles.command()
@click.argument("namespace")
@click.argument("bundle")
@click.argument("broker")
@click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing.")
@admin_url_option
@output_option
def move(
    namespace: str, bundle: str, broker: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Hand a BUNDLE over to a BROKER, which is written HOST:PORT with its HTTP port."""
    name = parse_namespace(namespace)
    if dry_run:
        _would(name, bundle, "move", broker, admin_url, output)
        return
    to = broker.removeprefix("http://").rstrip("/")
    before, after = ask_admin(
        admin_url, lambda admin: _hand_over(admin, name, bundle, to), changes=True
    )
    if after != to:
        raise UserError(
            f"The bundle {name}/{bundle} was not moved to {to}:"
            f" {f'{after} serves it' if after else 'no broker serves it'} now. Try again."
        )
    write_record({"bundle": f"{name}/{bundle}", "from": before, "broker": after}, output)


async def _hand_over(admin: Admin, namespace: str, bundle: str, to: str = "") -> tuple[str, str]:
    """Let the owner of a bundle hand it over; return the broker before, and the one afterwards.

    Raise UserError if no broker serves the bundle: the REST would say that all is well, as Pulsar's
    does, and do nothing.
    """
    before = (await owners_of(admin, namespace)).get(bundle)
    if before == "":
        raise UserError(
            f"No broker serves the bundle {namespace}/{bundle}, so nothing was moved: the first"
            " client that uses one of its topics decides."
        )
    query: dict[str, bool | str] = {"destinationBroker": to} if to else {}
    await admin.call("PUT", f"{_path(namespace, bundle)}/unload", query=query)
    return before or "", (await owners_of(admin, namespace)).get(bundle, "")


def _would(
    namespace: str, bundle: str, what: str, to: str, admin_url: str, output: OutputFormat
) -> None:
    """Write what a command would concern."""
    owners: dict[str, Any] = ask_admin(admin_url, lambda admin: owners_of(admin, namespace))
    chosen = {each: owners[each] for each in owners if bundle in ("", each)}
    if not chosen:
        error = f"there is no bundle {bundle} in {namespace}"
        raise UserError(f"{error}.{hint(error)}")
    rows = [
        {
            "bundle": each,
            "broker": broker,
            f"would {what}": (to or "yes") if broker or what == "split" else "no broker serves it",
        }
        for each, broker in chosen.items()
    ]
    write_rows(rows, (*_LISTED, f"would {what}"), output)
