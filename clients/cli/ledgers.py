"""`daybook ledgers`: ledgers as ZooKeeper and the bookies have them, past the brokers.

    daybook ledgers list
    daybook ledgers show 17
    daybook ledgers read 17 --from 0 --to 9
    daybook ledgers check [17 18] [--read] [--mend]
    daybook ledgers recover 17 [--accept-loss]
    daybook ledgers why-kept 17
    daybook ledgers delete 17

Reading never fences or recovers: whoever writes to the ledger does not notice, and nothing behind
what is confirmed is shown.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from daybook.bookie.errors import MalformedMetadataError, NoSuchEntryError, NoSuchLedgerError
from daybook.bookie.ledger.client import LedgerClient, LedgerMetadata, LedgerReader
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.cli.entries import Description, describe
from daybook.clients.cli.ledger_care import check, delete, recover, why_kept
from daybook.clients.cli.ledger_client import new_rng, open_client
from daybook.clients.cli.metadata import run_on_ledgers
from daybook.clients.cli.options import OutputFormat, output_option, zookeeper_options
from daybook.clients.cli.output import write_record, write_rows
from daybook.wire.entry import Entry
from daybook.wire.metadata.store import MetadataStore

_LIST_COLUMNS = ("ledger", "state", "entries", "bytes", "quorums", "created", "holds")
_FRAGMENT_COLUMNS = ("first_entry", "bookies")
_READ_BYTES = 1 << 20
_SHOWN_BYTES = 48
_ROW = "{:>8}  {:>10}  {:>8}  {:>12}  {}"
_entry_id = click.IntRange(min=0)
_ledger_id = click.IntRange(0, (1 << 63) - 1)


@click.group()
def ledgers() -> None:
    """Ledgers, straight from ZooKeeper and the bookies."""


for _command in (check, recover, why_kept, delete):
    ledgers.add_command(_command)


@ledgers.command(name="list")
@zookeeper_options
@output_option
def list_(zookeeper: str, root: str, output: OutputFormat) -> None:
    """List the ledgers.  Entries and bytes are known of closed ones."""
    rows = run_on_ledgers(zookeeper, root, lambda store: _list(_catalog(store, root)))
    write_rows(rows, _LIST_COLUMNS, output)


@ledgers.command()
@click.argument("ledger", type=_ledger_id)
@zookeeper_options
@output_option
def show(ledger: int, zookeeper: str, root: str, output: OutputFormat) -> None:
    """Show the metadata of a ledger, and which bookies hold it."""
    metadata = run_on_ledgers(
        zookeeper, root, lambda store: _metadata(_catalog(store, root), ledger)
    )
    custom = {key: value.decode(errors="replace") for key, value in metadata.custom.items()}
    digest = metadata.digest_type
    record = {
        **_row(ledger, metadata),
        "last_entry": metadata.last_entry_id if metadata.closed else None,
        "digest": None if digest is None else digest.name,
        "metadata_format": metadata.format_version,
    }
    if output == "json":
        fragments = [
            {"first_entry": fragment.first_entry_id, "bookies": fragment.ensemble}
            for fragment in metadata.fragments
        ]
        write_record({**record, "fragments": fragments, "custom": custom}, output)
        return
    # Whoever made the ledger chose these names: they may be those of our own fields.
    write_record({**record, **{f"custom {key}": value for key, value in custom.items()}}, output)
    click.echo()
    rows = [
        {"first_entry": fragment.first_entry_id, "bookies": " ".join(fragment.ensemble)}
        for fragment in metadata.fragments
    ]
    write_rows(rows, _FRAGMENT_COLUMNS, output)


@ledgers.command()
@click.argument("ledger", type=_ledger_id)
@click.option(
    "--from",
    "first",
    metavar="ENTRY",
    type=_entry_id,
    default=0,
    show_default=True,
    help="The first one to read.",
)
@click.option(
    "--to",
    "last",
    metavar="ENTRY",
    type=_entry_id,
    help="The last one to read.  [default: the last confirmed one]",
)
@zookeeper_options
@output_option
def read(
    ledger: int, first: int, last: int | None, zookeeper: str, root: str, output: OutputFormat
) -> None:
    """Read entries, both ends included: a line for each.

    As JSON it has the payload, in base64.
    """
    if last is not None and last < first:
        raise click.BadParameter("it is before --from.", param_hint="--to")
    run_on_ledgers(zookeeper, root, lambda store: _read(store, root, ledger, first, last, output))


# -- metadata


def _catalog(store: MetadataStore, root: str) -> LedgerMetadataStore:
    return LedgerMetadataStore(store, LedgerPaths(root), new_rng())


async def _list(catalog: LedgerMetadataStore) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    async for ledger_id in catalog.list():
        try:
            stored = await catalog.read(ledger_id)
        except NoSuchLedgerError:
            continue  # deleted meanwhile
        except MalformedMetadataError:
            rows.append(
                {**dict.fromkeys(_LIST_COLUMNS), "ledger": ledger_id, "state": "unreadable"}
            )
            continue
        rows.append(_row(ledger_id, stored.metadata))
    return rows


async def _metadata(catalog: LedgerMetadataStore, ledger_id: int) -> LedgerMetadata:
    return (await catalog.read(ledger_id)).metadata


def _row(ledger_id: int, metadata: LedgerMetadata) -> dict[str, object]:
    quorums, created_ms = metadata.quorums, metadata.created_ms
    created = None
    if created_ms is not None:
        created = datetime.fromtimestamp(created_ms / 1000, UTC).isoformat(timespec="seconds")
    return {
        "ledger": ledger_id,
        "state": metadata.state.name,
        "entries": metadata.last_entry_id + 1 if metadata.closed else None,
        "bytes": metadata.length if metadata.closed else None,
        "quorums": f"{quorums.ensemble}/{quorums.write}/{quorums.ack}",
        "created": created,
        "holds": _holds(metadata.custom),
    }


def _holds(custom: Mapping[str, bytes]) -> str | None:
    """What a ledger is for, as far as it says so: a topic's log, or a cursor of it."""
    log, cursor = custom.get("pulsar/managed-ledger"), custom.get("pulsar/cursor")
    if log is None:
        return None
    name = log.decode(errors="replace")
    return name if cursor is None else f"{name} cursor {cursor.decode(errors='replace')}"


# -- entries


async def _read(
    store: MetadataStore, root: str, ledger_id: int, first: int, last: int | None, output: str
) -> None:
    metadata = await _metadata(_catalog(store, root), ledger_id)
    async with open_client(store, root) as client:
        reader = await _open(client, ledger_id, metadata)
        await _write_entries(reader, first, last, output)


async def _open(client: LedgerClient, ledger_id: int, metadata: LedgerMetadata) -> LedgerReader:
    """Who may read the metadata has the password: it is in there."""
    return await client.open(ledger_id, recover=False, password=metadata.password or b"")


async def _write_entries(reader: LedgerReader, first: int, last: int | None, output: str) -> None:
    newest = reader.last_add_confirmed
    if first > newest and (first or last is not None):
        why = "it is empty" if newest < 0 else f"the last one is {newest}"
        if not reader.closed:
            why += ", as far as is known while it is open"
        raise NoSuchEntryError(reader.ledger_id, first, why)
    last = newest if last is None else min(last, newest)
    holds_messages = _holds_messages(reader.metadata.custom)
    if output != "json":
        click.echo(_ROW.format("entry", "bytes", "messages", "offset", "data"))
    while first <= last:
        for entry in await reader.read(first, last, max_bytes=_READ_BYTES):
            description = describe(entry.payload) if holds_messages else Description()
            show_entry = _as_json if output == "json" else _as_row
            click.echo(show_entry(entry, description))
            first = entry.entry_id + 1


def _holds_messages(custom: Mapping[str, bytes]) -> bool:
    return "pulsar/managed-ledger" in custom and "pulsar/cursor" not in custom


def _as_row(entry: Entry, description: Description) -> str:
    def text(value: object) -> str:
        return "-" if value is None else str(value)

    data = bytes(entry.payload[:_SHOWN_BYTES]) if description.data is None else description.data
    return _ROW.format(
        entry.entry_id,
        len(entry.payload),
        text(description.messages),
        text(description.first_offset),
        repr(data[:_SHOWN_BYTES])[2:-1],
    )


def _as_json(entry: Entry, description: Description) -> str:
    return json.dumps(
        {
            "entry": entry.entry_id,
            "lac": entry.lac,
            "length": entry.length,
            "messages": description.messages,
            "first_offset": description.first_offset,
            "publish_time_ms": description.publish_time_ms,
            "payload": b64encode(entry.payload).decode(),
        }
    )
