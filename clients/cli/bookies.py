"""`daybook bookies`: which bookies belong to a cluster, how they are, and how they leave it.

daybook bookies list
daybook bookies health
daybook bookies read-only b1:3181 [--off]
daybook bookies decommission b1:3181 [--wait-retention] [--no-wait] [--cancel]
daybook bookies recommission b1:3181
daybook bookies replace-disk b1:3181 [--no-wait]
daybook bookies repair bookie-1 [--set-aside]
"""

import click

from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import bookie_info, readonly_bookies, writable_bookies
from daybook.clients.cli.bookie_care import (
    decommission,
    health,
    read_only,
    recommission,
    replace_disk,
)
from daybook.clients.cli.bookie_repair import repair
from daybook.clients.cli.metadata import run_on_ledgers
from daybook.clients.cli.options import OutputFormat, output_option, zookeeper_options
from daybook.clients.cli.output import write_rows
from daybook.wire.metadata.store import MetadataStore

_COLUMNS = ("bookie", "state", "address", "http")


@click.group()
def bookies() -> None:
    """Look at the bookies of a cluster; take them out, and back."""


for _command in (health, read_only, decommission, recommission, replace_disk, repair):
    bookies.add_command(_command)


@bookies.command(name="list", short_help="List the bookies and how they are.")
@zookeeper_options
@output_option
def list_(zookeeper: str, root: str, output: OutputFormat) -> None:
    """List the bookies: writable, readonly, or away (registered once, not there now)."""
    rows = run_on_ledgers(zookeeper, root, lambda store: _bookies(store, LedgerPaths(root)))
    write_rows(rows, _COLUMNS, output)


async def _bookies(store: MetadataStore, paths: LedgerPaths) -> list[dict[str, object]]:
    writable = await writable_bookies(store, paths)
    readonly = await readonly_bookies(store, paths)
    known = await known_bookies(store, paths)
    rows: list[dict[str, object]] = []
    for bookie_id in sorted({*writable, *readonly, *known}):
        info = await bookie_info(store, paths, bookie_id)
        if info is None:
            state = "away"
        else:
            state = "readonly" if bookie_id in readonly else "writable"
        has_http = info is not None and info.http_port is not None
        rows.append(
            {
                "bookie": bookie_id,
                "state": state,
                "address": f"{info.host}:{info.port}" if info else None,
                "http": f"http://{info.host}:{info.http_port}" if info and has_http else None,
            }
        )
    return rows
