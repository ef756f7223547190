"""`daybook bundles`: which broker serves which part of a namespace; moving and splitting parts."""

import itertools
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace
from daybook.clients.cli.options import OutputFormat, admin_url_option, output_option
from daybook.clients.cli.output import write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.wire.topics import url_encode

_LISTED = ("bundle", "broker")
_ALGORITHMS = {"range": "range_equally_divide", "topics": "topic_count_equally_divide"}


@click.group()
def bundles() -> None:
    """List, move and split bundles, the parts of a namespace.

    A bundle is a range of hashes of topics, such as 0x00000000_0x40000000, and one broker serves
    it.  A NAMESPACE is written TENANT/NAME.
    """


def _path(namespace: str, bundle: str = "") -> str:
    return f"/admin/v2/namespaces/{namespace}" + (f"/{url_encode(bundle)}" if bundle else "")


async def _owners(admin: Admin, namespace: str) -> dict[str, str]:
    """Return the broker of each bundle of the namespace; "" if it has none."""
    boundaries = (await admin.bundles(namespace))["boundaries"]
    owners = {f"{low}_{high}": "" for low, high in itertools.pairwise(boundaries)}
    for broker in await admin.brokers():
        path = f"/admin/v2/brokers/-/{url_encode(broker)}/ownedNamespaces"
        for name in await admin.call("GET", path):
            of, _, bundle = name.rpartition("/")
            if of == namespace and bundle in owners:
                owners[bundle] = broker
    return owners


@bundles.command("list")
@click.argument("namespace", default="public/default")
@admin_url_option
@output_option
def list_(namespace: str, admin_url: str, output: OutputFormat) -> None:
    """List the bundles of a NAMESPACE with the brokers that serve them."""
    name = parse_namespace(namespace)
    owners = ask_admin(admin_url, lambda admin: _owners(admin, name))
    rows = [{"bundle": bundle, "broker": broker} for bundle, broker in owners.items()]
    write_rows(rows, _LISTED, output)


@bundles.command()
@click.argument("namespace")
@click.argument("bundle")
@click.option(
    "--by",
    type=click.Choice(list(_ALGORITHMS)),
    default="topics",
    show_default=True,
    help="Half of the loaded topics on each side, or half of the range.",
)
@click.option("--dry-run", is_flag=True, help="Say which broker would split it.")
@admin_url_option
@output_option
def split(
    namespace: str, bundle: str, by: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Split a BUNDLE of a NAMESPACE in two.  Its topics are served all the time."""
    name = parse_namespace(namespace)
    if dry_run:
        _would(name, bundle, "split", "", admin_url, output)
        return
    query: dict[str, bool | str] = {"splitAlgorithmName": _ALGORITHMS[by]}
    _change(f"{_path(name, bundle)}/split", query, admin_url)
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
    _change(f"{_path(name, bundle)}/unload", {}, admin_url)
    write_record({"bundle": f"{name}/{bundle}".rstrip("/"), "unloaded": "yes"}, output)


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
    _change(f"{_path(name, bundle)}/unload", {"destinationBroker": broker}, admin_url)
    write_record({"bundle": f"{name}/{bundle}", "broker": broker}, output)


def _change(path: str, query: dict[str, bool | str], admin_url: str) -> None:
    ask_admin(admin_url, lambda admin: admin.call("PUT", path, query=query), changes=True)


def _would(
    namespace: str, bundle: str, what: str, to: str, admin_url: str, output: OutputFormat
) -> None:
    """Write what a command would concern."""
    owners: dict[str, Any] = ask_admin(admin_url, lambda admin: _owners(admin, namespace))
    chosen = {each: owners[each] for each in owners if bundle in ("", each)}
    rows = [
        {"bundle": each, "broker": broker, f"would {what}": to or "yes"}
        for each, broker in chosen.items()
    ]
    write_rows(rows, (*_LISTED, f"would {what}"), output)
