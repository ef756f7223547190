"""`daybook ledgers`: inspect and repair ledgers directly in ZooKeeper and on the bookies.

    daybook ledgers list
    daybook ledgers show 17
    daybook ledgers read 17 --from 0 --to 9
    daybook ledgers check [17 18] [--read] [--mend]
    daybook ledgers recover 17 [--accept-loss]
    daybook ledgers why-kept 17
    daybook ledgers delete 17

Reading never fences or recovers a ledger, so its writer is not disturbed.  Entries behind the last
confirmed one are not shown.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from daybook.bookie.errors import (
    MalformedMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RecoveryAbortedError,
)
from daybook.bookie.ledger.client import LedgerClient, LedgerReader
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.checker import Checker, TooManyEntriesError
from daybook.bookie.replication.protocol.replica_check import FragmentReport
from daybook.bookie.replication.unsafe_recovery import accept_loss
from daybook.clients.cli.bookie_liveness import BookieLiveness
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.ledger_client import new_rng, open_client
from daybook.clients.cli.ledger_references import LedgerReferences, references_to
from daybook.clients.cli.metadata import run_on_ledgers
from daybook.clients.cli.options import bookie_options, other_instance_option, zookeeper_options
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.progress import open_progress
from daybook.wire.batch import (
    is_batch,
    iter_batch,
    num_messages,
    parse_metadata,
    split_broker_metadata,
)
from daybook.wire.clock import SystemClock
from daybook.wire.compression import decompress
from daybook.wire.entry import Entry
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.proto import pulsar_pb2 as pb

_LIST_COLUMNS = ("ledger", "state", "entries", "bytes", "quorums", "created", "holds")
_FRAGMENT_COLUMNS = ("first_entry", "bookies")
_READ_BYTES = 1 << 20
_SHOWN_BYTES = 48
_ROW = "{:>8}  {:>10}  {:>8}  {:>12}  {}"
_entry_id = click.IntRange(min=0)
_ledger_id = click.IntRange(0, (1 << 63) - 1)
_CHECK_COLUMNS = ("ledger", "first", "last", "copies", "of", "state", "what")
_LACKING, _UNKNOWN, _LOST = 3, 4, 5
_RANKS = {
    "whole": 0,
    "unknown": _UNKNOWN,
    "unreadable": _UNKNOWN,
    "lacks copies": _LACKING,
    "no copy": _LOST,
}
_RECOVER_ADVICE = (
    "start the bookies that are away (`daybook bookies health`) and try again; if they are gone for"
    " good, --accept-loss ends the ledger where a copy was last found"
)
_ACCEPT_LOSS_ADVICE = (
    "a bookie that is registered and does not answer is waited for, and what is recovered has to"
    " go to as many bookies as the ledger needs: start others, and try again"
)
_DECOMPRESSED_MAX = 64 << 20


@click.group()
def ledgers() -> None:
    """Inspect and repair ledgers directly in ZooKeeper and on the bookies.

    A ledger is an append-only log with one writer, replicated on several bookies; a topic is a
    chain of ledgers.  To fence a ledger is to make its bookies refuse its writer, so that the
    ledger can be closed at one end that all readers agree on.
    """


@ledgers.command(name="list")
@zookeeper_options
@output_option
def list_(zookeeper: str, root: str, output: OutputFormat) -> None:
    """List the ledgers.  Entries and bytes are known only for closed ones."""
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
        **_list_row(ledger, metadata),
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
    # The creator of the ledger chose these names; without a prefix they could hide our fields.
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
    help="The first entry to read.",
)
@click.option(
    "--to",
    "last",
    metavar="ENTRY",
    type=_entry_id,
    help="The last entry to read.  [default: the last confirmed one]",
)
@bookie_options
@zookeeper_options
@output_option
def read(
    ledger: int, first: int, last: int | None, zookeeper: str, root: str, output: OutputFormat
) -> None:
    """Read the entries from --from to --to, both included, and print a line for each.

    With --output json a line has the payload in base64.
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
        rows.append(_list_row(ledger_id, stored.metadata))
    return rows


async def _metadata(catalog: LedgerMetadataStore, ledger_id: int) -> LedgerMetadata:
    return (await catalog.read(ledger_id)).metadata


def _list_row(ledger_id: int, metadata: LedgerMetadata) -> dict[str, object]:
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
    """Return the topic, or the topic and cursor, that a ledger belongs to; None if unknown."""
    log, cursor = custom.get("pulsar/managed-ledger"), custom.get("pulsar/cursor")
    if log is None:
        return None
    name = log.decode(errors="replace")
    return name if cursor is None else f"{name} cursor {cursor.decode(errors='replace')}"


# -- the messages in an entry of a topic


@dataclass(frozen=True, slots=True)
class Description:
    """The messages in an entry; fields are None if unknown."""

    messages: int | None = None
    first_offset: int | None = None
    publish_time_ms: int | None = None
    data: bytes | None = None  # the first message's


def describe(payload: memoryview) -> Description:
    """Describe the messages in an entry, as far as it can be parsed and is not encrypted."""
    try:
        _, index, rest = split_broker_metadata(payload)
        metadata, body = parse_metadata(rest)
        count = num_messages(metadata)
        first_offset = None if index is None else index - count + 1
        data = None if metadata.encryption_keys else _first_data(metadata, body, count)
    except WireError:
        return Description()
    return Description(count, first_offset, metadata.publish_time, data)


def _first_data(metadata: pb.MessageMetadata, body: memoryview, count: int) -> bytes | None:
    plain: bytes = bytes(body)
    if metadata.compression != pb.NONE and metadata.uncompressed_size:
        kind, size = int(metadata.compression), metadata.uncompressed_size
        plain = bytes(decompress(kind, body, size, _DECOMPRESSED_MAX))
    if not is_batch(metadata):
        return plain
    return next((data for _, data in iter_batch(plain, count)), None)


# -- entries


async def _read(
    store: MetadataStore, root: str, ledger_id: int, first: int, last: int | None, output: str
) -> None:
    metadata = await _metadata(_catalog(store, root), ledger_id)
    async with open_client(store, root) as client:
        reader = await _open(client, ledger_id, metadata)
        await _write_entries(reader, first, last, output)


async def _open(client: LedgerClient, ledger_id: int, metadata: LedgerMetadata) -> LedgerReader:
    """Open a ledger without recovery; the metadata contains its password."""
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


# -- check


@ledgers.command(short_help="Check that all copies of all entries exist.")
@click.argument("ledgers", nargs=-1, type=_ledger_id)
@click.option("--read", is_flag=True, help="Read every copy and verify its digest.")
@click.option("--mend", is_flag=True, help="Mark ledgers that lack copies, for auto-recovery.")
@other_instance_option
@bookie_options
@zookeeper_options
@output_option
def check(
    ledgers: tuple[int, ...],
    read: bool,
    mend: bool,
    zookeeper: str,
    root: str,
    output: OutputFormat,
) -> None:
    """Check these ledgers, or all, for copies that bookies should hold but do not.

    No ledger is fenced, and the last fragment of an open ledger is not checked, since its writer is
    using it.  The exit code is 0 if all copies exist, 3 if some are missing, 4 if a bookie did not
    answer or metadata do not parse, 5 if no copy of an entry is left.  A bookie counts as gone if
    it is not registered and its address refuses connections; a silent bookie may have all its
    copies.
    """
    rows = run_on_ledgers(
        zookeeper, root, partial(_check, root=root, ids=ledgers, read=read, mend=mend), writes=mend
    )
    if output == "json":
        write_rows(rows, _CHECK_COLUMNS, output)
    elif rows:
        shown = [row for row in rows if row["state"] != "whole"]
        if shown:
            write_rows(shown, _CHECK_COLUMNS, output)
        else:
            fragments = "1 fragment" if len(rows) == 1 else f"{len(rows)} fragments"
            click.echo(f"All copies are there, in {fragments}.")
    else:
        click.echo("There is nothing to check: no closed fragment has entries.")
    worst = {_RANKS[row["state"]] for row in rows}
    for code in (_LOST, _LACKING, _UNKNOWN):
        if code in worst:
            sys.exit(code)


async def _check(
    store: MetadataStore, root: str, ids: Sequence[int], read: bool, mend: bool
) -> list[dict[str, Any]]:
    underreplication = Underreplication(store, LedgerPaths(root), "")
    rows: list[dict[str, Any]] = []
    async with open_client(store, root) as client, open_progress("Checking") as advance:
        chosen = ids or [ledger_id async for ledger_id in client.list_ledgers()]
        checker, liveness = Checker(client.context), BookieLiveness(client.context)
        for number, ledger_id in enumerate(chosen):
            advance(number, len(chosen), f"ledger {ledger_id}")
            try:
                metadata = await client.metadata(ledger_id)
            except NoSuchLedgerError:
                if ids:
                    raise
                continue  # deleted since it was listed
            except MalformedMetadataError as error:
                rows.append(_unreadable(ledger_id, str(error)))
                continue
            statuses = await liveness.for_ledger(metadata)
            verify = list(statuses) if read else ()
            try:
                reports = await checker.check(ledger_id, metadata, statuses, verify=verify)
            except TooManyEntriesError as error:
                rows.append(_unreadable(ledger_id, str(error)))
                continue
            for report in reports:
                await liveness.note_report(report)
                rows.append(_check_row(ledger_id, metadata, report, liveness))
            lacking = _lacking(reports)
            if mend and lacking:
                await underreplication.mark(ledger_id, lacking, SystemClock().now_ms())
    return rows


def _lacking(reports: Sequence[FragmentReport]) -> list[BookieId]:
    filled = {fill.bookie for report in reports for fill in report.fills}
    return sorted(filled | {move.bookie for report in reports for move in report.moves})


def _check_row(
    ledger_id: int, metadata: LedgerMetadata, report: FragmentReport, liveness: BookieLiveness
) -> dict[str, Any]:
    what = [f"{fill.bookie} lacks {_spans(fill.entries)}" for fill in report.fills]
    what += [f"{move.bookie}: {move.why}{liveness.why_gone(move.bookie)}" for move in report.moves]
    what += [liveness.describe_silence(bookie) for bookie in report.silent]
    if report.no_copy:
        what.append(f"no copy of {_spans(report.no_copy)}")
    if report.unknown:
        what.append(f"no copy found of {_spans(report.unknown)}")
    state = "whole"
    if report.no_copy:
        state = "no copy"
    elif report.fills or report.moves:
        state = "lacks copies"
    elif not report.whole:
        state = "unknown"
    return {
        "ledger": ledger_id,
        "first": report.fragment.first,
        "last": report.fragment.last,
        "copies": report.copies,
        "of": metadata.quorums.write,
        "state": state,
        "what": "; ".join(what) or None,
    }


def _unreadable(ledger_id: int, why: str) -> dict[str, Any]:
    return dict.fromkeys(_CHECK_COLUMNS) | {
        "ledger": ledger_id,
        "state": "unreadable",
        "what": why,
    }


def _spans(runs: Sequence[range]) -> str:
    return " ".join(f"{run.start}-{run.stop - 1}" for run in runs)


# -- recover


@ledgers.command(short_help="Fence a ledger, find its end, and close it.")
@click.argument("ledger", type=_ledger_id)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If no bookie can tell where the ledger ends, end it at the last entry that has a copy.",
)
@click.option("--yes", is_flag=True, help="Do not ask, with --accept-loss.")
@other_instance_option
@bookie_options
@zookeeper_options
@output_option
def recover(
    ledger: int, accept_loss: bool, yes: bool, zookeeper: str, root: str, output: OutputFormat
) -> None:
    """Fence a ledger, find its end, and close it.  Its writer, if there is one, cannot continue.

    Recovery fails (exit code 1) as long as too few bookies can tell what was confirmed.  With
    --accept-loss it ignores bookies that are away or answer 'unknown': entries that only they had
    are lost, even acknowledged ones.
    """
    is_open = partial(_is_open, root=root, ledger_id=ledger)
    if accept_loss and not yes and run_on_ledgers(zookeeper, root, is_open, writes=True):
        confirm(
            f"Entries of ledger {ledger} that only missing bookies have will be lost. Continue?",
            yes=yes,
        )
    work = partial(_recover_or_say, root=root, ledger_id=ledger, lossy=accept_loss)
    write_record(run_on_ledgers(zookeeper, root, work, writes=True), output)


async def _is_open(store: MetadataStore, root: str, ledger_id: int) -> bool:
    async with open_client(store, root) as client:
        return not (await client.context.metadata_store.read(ledger_id)).metadata.closed


async def _recover_or_say(
    store: MetadataStore, root: str, ledger_id: int, lossy: bool
) -> dict[str, Any]:
    try:
        return await _recover(store, root, ledger_id, lossy)
    except RecoveryAbortedError as error:
        raise UserError(f"{error}: {_ACCEPT_LOSS_ADVICE if lossy else _RECOVER_ADVICE}.") from error


async def _recover(store: MetadataStore, root: str, ledger_id: int, lossy: bool) -> dict[str, Any]:
    async with open_client(store, root) as client:
        context = client.context
        stored = await context.metadata_store.read(ledger_id)
        before = stored.metadata.state.name
        given_up: Sequence[BookieId] = ()
        lost_from: int | None = None
        if lossy and not stored.metadata.closed:
            accepted = await accept_loss(context, ledger_id, stored)
            stored, given_up, lost_from = (
                accepted.stored,
                accepted.given_up,
                accepted.lost_from,
            )
        elif not stored.metadata.closed:
            stored = await recover_ledger(context, ledger_id, stored)
    metadata = stored.metadata
    record: dict[str, Any] = {
        "ledger": ledger_id,
        "was": before,
        "state": metadata.state.name,
        "entries": metadata.last_entry_id + 1,
        "bytes": metadata.length,
    }
    if lossy:
        record["given_up"] = ", ".join(given_up) or None
        record["lost_from"] = lost_from
    return record


# -- why-kept


@ledgers.command("why-kept", short_help="Show which topics and subscriptions need a ledger.")
@click.argument("ledger", type=_ledger_id)
@bookie_options
@zookeeper_options
@output_option
def why_kept(ledger: int, zookeeper: str, root: str, output: OutputFormat) -> None:
    """Show why a ledger still exists: its topic, subscriptions that need it, retention."""
    reasons = run_on_ledgers(zookeeper, root, partial(_why_kept, root=root, ledger_id=ledger))
    if output == "json":
        write_record({"ledger": ledger, **reasons.as_record()}, output)
        return
    for reason in reasons.sentences:
        click.echo(reason)


async def _why_kept(store: MetadataStore, root: str, ledger_id: int) -> LedgerReferences:
    async with open_client(store, root) as client:
        metadata = await client.metadata(ledger_id)
    return await references_to(store, ledger_id, metadata)


# -- delete


@ledgers.command(short_help="Delete a ledger, and with it its entries.")
@click.argument("ledger", type=_ledger_id)
@click.option(
    "--force", is_flag=True, help="Delete the ledger even if it is open or a topic lists it."
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Say if it would be deleted, and delete nothing.")
@other_instance_option
@bookie_options
@zookeeper_options
def delete(ledger: int, force: bool, yes: bool, dry_run: bool, zookeeper: str, root: str) -> None:
    """Delete a ledger and its entries; bookies free the space later.

    A ledger that is open, or that a topic or a subscription lists, is only deleted with --force.
    """
    if not yes or dry_run:
        run_on_ledgers(
            zookeeper, root, partial(_look, root=root, ledger_id=ledger, force=force), writes=True
        )
        if dry_run:
            click.echo(f"Ledger {ledger} would be deleted, and its entries.")
            return
        confirm(f"Delete ledger {ledger} and its entries?", yes=yes)
    run_on_ledgers(
        zookeeper, root, partial(_delete, root=root, ledger_id=ledger, force=force), writes=True
    )
    click.echo(f"Ledger {ledger} is deleted.")


async def _look(store: MetadataStore, root: str, ledger_id: int, force: bool) -> None:
    async with open_client(store, root) as client:
        await _check_deletable(store, client, ledger_id, force)


async def _delete(store: MetadataStore, root: str, ledger_id: int, force: bool) -> None:
    async with open_client(store, root) as client:
        # Again, though `_look` did it: a topic may have listed the ledger while the user thought.
        await _check_deletable(store, client, ledger_id, force)
        await client.delete(ledger_id)


async def _check_deletable(
    store: MetadataStore, client: LedgerClient, ledger_id: int, force: bool
) -> None:
    try:
        metadata = await client.metadata(ledger_id)
    except MalformedMetadataError:
        if force:
            return
        raise
    if force:
        return
    if metadata.state is not LedgerState.CLOSED:
        raise UserError(
            f"Ledger {ledger_id} is {metadata.state.name}: `daybook ledgers recover {ledger_id}`"
            " closes it; --force deletes it as it is."
        )
    reasons = await references_to(store, ledger_id, metadata)
    if reasons.listed:
        why = " ".join(reasons.sentences)
        raise UserError(f"{why} --force deletes it nevertheless, and its topic may not open again.")
