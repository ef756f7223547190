"""`daybook ledgers check | recover | why-kept | delete`."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from daybook.bookie.errors import MalformedMetadataError, NoSuchLedgerError, RecoveryAbortedError
from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.replication.checker import Checker, TooManyEntriesError
from daybook.bookie.replication.forced import accept_loss
from daybook.bookie.replication.marks import Marks
from daybook.bookie.replication.protocol.copies import Report
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.kept import Reasons, reasons_for
from daybook.clients.cli.ledger_client import open_client
from daybook.clients.cli.metadata import run_on_ledgers
from daybook.clients.cli.options import (
    OutputFormat,
    other_instance_option,
    output_option,
    zookeeper_options,
)
from daybook.clients.cli.output import write_record, write_rows
from daybook.clients.cli.presence import Presences
from daybook.clients.cli.progress import open_progress
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.store import MetadataStore

_CHECK_COLUMNS = ("ledger", "first", "last", "copies", "of", "state", "what")
_LACKING, _UNKNOWN, _LOST = 3, 4, 5
_RANKS = {
    "whole": 0,
    "unknown": _UNKNOWN,
    "unreadable": _UNKNOWN,
    "lacks copies": _LACKING,
    "no copy": _LOST,
}
_NEXT = (
    "start the bookies that are away (`daybook bookies health`) and try again; if they are gone for"
    " good, --accept-loss ends the ledger where a copy was last found"
)
_LOSSY_NEXT = (
    "a bookie that is registered and does not answer is waited for, and what is recovered has to"
    " go to as many bookies as the ledger needs: start others, and try again"
)
_ledger_id = click.IntRange(0, (1 << 63) - 1)


# -- check


@click.command(short_help="Are all copies of all entries there?")
@click.argument("ledgers", nargs=-1, type=_ledger_id)
@click.option("--read", is_flag=True, help="Read every copy and verify its digest.")
@click.option("--mend", is_flag=True, help="Mark what lacks copies, for auto-recovery.")
@other_instance_option
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
    """Compare what bookies hold with what they should: of these ledgers, or of all.

    Nothing is fenced; of an open ledger its last fragment is its writer's and is not looked at.
    Exits with 0 if all copies are there, 3 if some are missing, 4 if a bookie did not answer or
    metadata do not parse, 5 if no copy is left of something.  Gone is a bookie that is not
    registered, and where it was nobody listens; one that is only silent may have all its copies.
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
        click.echo("There is nothing to check: no entries that are settled.")
    worst = {_RANKS[row["state"]] for row in rows}
    for code in (_LOST, _LACKING, _UNKNOWN):
        if code in worst:
            sys.exit(code)


async def _check(
    store: MetadataStore, root: str, ids: Sequence[int], read: bool, mend: bool
) -> list[dict[str, Any]]:
    marks = Marks(store, LedgerPaths(root), "")
    rows: list[dict[str, Any]] = []
    async with open_client(store, root) as client, open_progress("Checking") as advance:
        chosen = ids or [ledger_id async for ledger_id in client.list_ledgers()]
        checker, presences = Checker(client.context), Presences(client.context)
        for number, ledger_id in enumerate(chosen):
            advance(number, len(chosen), f"ledger {ledger_id}")
            try:
                metadata = await client.metadata(ledger_id)
            except NoSuchLedgerError:
                if ids:
                    raise
                continue  # deleted meanwhile
            except MalformedMetadataError as error:
                rows.append(_unreadable(ledger_id, str(error)))
                continue
            presence = await presences.of(metadata)
            verify = list(presence) if read else ()
            try:
                reports = await checker.check(ledger_id, metadata, presence, verify=verify)
            except TooManyEntriesError as error:
                rows.append(_unreadable(ledger_id, str(error)))
                continue
            for report in reports:
                await presences.heard(report)
                rows.append(_row(ledger_id, metadata, report, presences))
            lacking = _lacking(reports)
            if mend and lacking:
                await marks.mark(ledger_id, lacking, SystemClock().now_ms())
    return rows


def _lacking(reports: Sequence[Report]) -> list[BookieId]:
    filled = {fill.bookie for report in reports for fill in report.fills}
    return sorted(filled | {move.bookie for report in reports for move in report.moves})


def _row(
    ledger_id: int, metadata: LedgerMetadata, report: Report, presences: Presences
) -> dict[str, Any]:
    what = [f"{fill.bookie} lacks {_shown(fill.entries)}" for fill in report.fills]
    what += [f"{move.bookie}: {move.why}{presences.why_gone(move.bookie)}" for move in report.moves]
    what += [presences.what(bookie) for bookie in report.unheard]
    if report.no_copy:
        what.append(f"no copy of {_shown(report.no_copy)}")
    if report.no_answer:
        what.append(f"no copy found of {_shown(report.no_answer)}")
    state = "whole"
    if report.no_copy:
        state = "no copy"
    elif report.fills or report.moves:
        state = "lacks copies"
    elif not report.whole:
        state = "unknown"
    return {
        "ledger": ledger_id,
        "first": report.stretch.first,
        "last": report.stretch.last,
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


def _shown(runs: Sequence[range]) -> str:
    return " ".join(f"{run.start}-{run.stop - 1}" for run in runs)


# -- recover


@click.command(short_help="Fence a ledger, find its end, and close it.")
@click.argument("ledger", type=_ledger_id)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If nobody can tell where it ends: end it where a copy was last found.",
)
@click.option("--yes", is_flag=True, help="Do not ask, with --accept-loss.")
@other_instance_option
@zookeeper_options
@output_option
def recover(
    ledger: int, accept_loss: bool, yes: bool, zookeeper: str, root: str, output: OutputFormat
) -> None:
    """Fence a ledger, find its end, and close it.  Whoever writes to it cannot go on.

    Recovery gives up (exit code 1) as long as too few bookies can say what was confirmed.  With
    --accept-loss, bookies that are away, and those that say that they do not know, are given up:
    entries that only they had are lost, also acknowledged ones.
    """
    is_open = partial(_is_open, root=root, ledger_id=ledger)
    if accept_loss and not yes and run_on_ledgers(zookeeper, root, is_open, writes=True):
        click.confirm(
            f"Entries of ledger {ledger} that only missing bookies have will be lost. Go on?",
            abort=True,
            err=True,
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
        raise UserError(f"{error}: {_LOSSY_NEXT if lossy else _NEXT}.") from error


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


@click.command("why-kept", short_help="Say who needs a ledger.")
@click.argument("ledger", type=_ledger_id)
@zookeeper_options
@output_option
def why_kept(ledger: int, zookeeper: str, root: str, output: OutputFormat) -> None:
    """Say why a ledger is still there: its topic, the subscriptions behind it, retention."""
    reasons = run_on_ledgers(zookeeper, root, partial(_why_kept, root=root, ledger_id=ledger))
    if output == "json":
        write_record({"ledger": ledger, **reasons.as_record()}, output)
        return
    for reason in reasons.sentences:
        click.echo(reason)


async def _why_kept(store: MetadataStore, root: str, ledger_id: int) -> Reasons:
    async with open_client(store, root) as client:
        metadata = await client.metadata(ledger_id)
    return await reasons_for(store, ledger_id, metadata)


# -- delete


@click.command(short_help="Delete a ledger, and with it its entries.")
@click.argument("ledger", type=_ledger_id)
@click.option("--force", is_flag=True, help="Also one that is open, or that a topic lists.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@other_instance_option
@zookeeper_options
def delete(ledger: int, force: bool, yes: bool, zookeeper: str, root: str) -> None:
    """Delete a ledger.  Its entries are gone; bookies give the room back later.

    One that is open, or that a topic or a subscription lists, is refused without --force.
    """
    if not yes:
        run_on_ledgers(
            zookeeper, root, partial(_look, root=root, ledger_id=ledger, force=force), writes=True
        )
        click.confirm(f"Delete ledger {ledger} and its entries?", abort=True, err=True)
    run_on_ledgers(
        zookeeper, root, partial(_delete, root=root, ledger_id=ledger, force=force), writes=True
    )
    click.echo(f"Ledger {ledger} is deleted.")


async def _look(store: MetadataStore, root: str, ledger_id: int, force: bool) -> None:
    async with open_client(store, root) as client:
        await _check_deletable(store, client, ledger_id, force)


async def _delete(store: MetadataStore, root: str, ledger_id: int, force: bool) -> None:
    async with open_client(store, root) as client:
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
    reasons = await reasons_for(store, ledger_id, metadata)
    if reasons.listed:
        why = " ".join(reasons.sentences)
        raise UserError(f"{why} --force deletes it nevertheless, and its topic may not open again.")
