"""`daybook bookies`: list the bookies of a cluster, check them, remove them, bring them back.

daybook bookies list
daybook bookies health
daybook bookies read-only b1:3181 [--off]
daybook bookies decommission b1:3181 [--wait-retention] [--no-wait] [--cancel]
daybook bookies recommission b1:3181
daybook bookies replace-disk b1:3181 [--no-wait]
daybook bookies repair bookie-1 [--set-aside]
daybook bookies password FILE USER [--remove]
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from daybook.bookie.errors import MalformedMetadataError, NoSuchLedgerError
from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import (
    BookieInfo,
    bookie_info,
    readonly_bookies,
    writable_bookies,
)
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.decommission import (
    Decommission,
    DecommissionError,
    RemainingLedgers,
    is_registered,
)
from daybook.bookie.replication.protocol.replica_check import bookies_of
from daybook.bookie.replication.replace_disk import DiskReplacement, Readmission
from daybook.clients.cli.bookie_users import password
from daybook.clients.cli.control import ask
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.ledger_client import open_client
from daybook.clients.cli.metadata import run_on_ledgers
from daybook.clients.cli.options import (
    bookie_options,
    dir_option,
    other_instance_option,
    zookeeper_options,
)
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.plan import is_for_one_part
from daybook.clients.cli.progress import Advance, open_progress
from daybook.clients.cli.recovery_status import as_bytes
from daybook.clients.cli.supervisor import reason_in
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.store import MetadataStore

_COLUMNS = ("bookie", "state", "address", "http")
_HEALTH_COLUMNS = ("bookie", "state", "answers", "order", "ledgers", "at_writers", "marked")
_UNWELL = 3
_ACK_QUORUM = 2  # the default of brokers, if there are at least two bookies
_ANSWER_S = 3.0
_OBEY_S = 5.0  # for a bookie to take entries again
_SHOWN = 5


@click.group()
def bookies() -> None:
    """List the bookies of a cluster, check them, remove them, bring them back."""


bookies.add_command(password)


@bookies.command(name="list", short_help="List the bookies and their states.")
@zookeeper_options
@output_option
def list_(zookeeper: str, root: str, output: OutputFormat) -> None:
    """List the bookies: writable, readonly, or away (known by a cookie, but not registered)."""
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
        rows.append(
            {
                "bookie": bookie_id,
                "state": state,
                "address": f"{info.host}:{info.port}" if info else None,
                "http": None if info is None else _http_url(info),
            }
        )
    return rows


def _http_url(info: BookieInfo) -> str | None:
    if info.http_port is not None:
        return f"http://{info.host}:{info.http_port}"
    return None if info.https_port is None else f"https://{info.host}:{info.https_port}"


@bookies.command(short_help="Probe each bookie, and count the ledgers on it.")
@bookie_options
@zookeeper_options
@click.option(
    "--ack-quorum",
    type=click.IntRange(min=1),
    envvar="DAYBOOK_BROKER_QUORUMS__ACK",
    help="The number of bookies that must store an entry before it is acknowledged."
    "  [default: as brokers choose: 2, or 1 if there is one bookie]",
)
@output_option
def health(zookeeper: str, root: str, ack_quorum: int | None, output: OutputFormat) -> None:
    """Probe each bookie; count the ledgers on it, and those that lack copies.

    `at_writers` counts the open ledgers whose last fragment names the bookie.  The exit code is 3
    unless every bookie is registered and answers, and enough of them take entries for messages to
    be published.
    """
    rows, known = run_on_ledgers(zookeeper, root, partial(_health, root=root))
    write_rows(rows, _HEALTH_COLUMNS, output)
    trouble = _why_not_writable(rows, ack_quorum or max(1, min(known, _ACK_QUORUM)))
    if trouble is not None:
        click.echo(f"\n{trouble}", err=True)
    if trouble is not None or not all(row["answers"] and row["state"] != "away" for row in rows):
        sys.exit(_UNWELL)


def _why_not_writable(rows: Sequence[Mapping[str, Any]], ack_quorum: int) -> str | None:
    """Return the reason why entries cannot be acknowledged; None if they can."""
    writable = [row for row in rows if row["state"] == "writable" and row["answers"]]
    if len(writable) >= ack_quorum:
        return None
    refusing = sum(row["refuses"] for row in rows)
    if len(writable) + refusing >= ack_quorum:
        return (
            f"It is not known whether something can be published: {refusing} of {len(rows)} bookies"
            " refuse this command. Give --bookie-tls, and --bookie-user with --bookie-password-file"
            " or --tls-certificate with --tls-key."
        )
    readonly = sum(row["state"] == "readonly" for row in rows)
    away = "start those that are away or do not answer"
    back = (
        "`daybook bookies read-only BOOKIE --off` ends an order to take no entries, and /healthz on"
        " the HTTP port of a bookie says why else it is read-only"
    )
    return (
        f"Nothing can be published: {len(writable)} of {len(rows)} bookies take entries"
        f" ({readonly} are read-only), and each entry is stored on {ack_quorum} of them before it"
        f" is acknowledged. To continue, {away}; {back}."
    )


async def _health(store: MetadataStore, root: str) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each bookie, and the number of known ones, by which brokers set quorums."""
    paths = LedgerPaths(root)
    known = await known_bookies(store, paths)
    writable = await writable_bookies(store, paths)
    readonly = await readonly_bookies(store, paths)
    orders = await AdminStates(store, paths).list()
    async with open_client(store, root) as client:
        rows: dict[str, dict[str, Any]] = {}
        for name in sorted({*writable, *readonly, *known}):
            bookie = BookieId(name)
            order = orders.get(bookie)
            here = "writable" if name in writable else "readonly" if name in readonly else "away"
            rows[name] = {
                "bookie": name,
                "state": here,
                "answers": False,
                "refuses": False,
                "order": None if order is None else order.kind.value,
                "ledgers": 0,
                "at_writers": 0,
                "marked": 0,
            }
        await _count(client, Underreplication(store, paths, ""), rows)
        async with trio.open_nursery() as nursery:
            for row in rows.values():
                if row["state"] != "away":
                    nursery.start_soon(_ask, client, row)
    return list(rows.values()), len(known)


async def _ask(client: LedgerClient, row: dict[str, Any]) -> None:
    with trio.move_on_after(_ANSWER_S):
        bookies, name = client.context.bookies, BookieId(row["bookie"])
        row["answers"] = await bookies.probe(name)
        row["refuses"] = not row["answers"] and bookies.is_refused_by(name)


async def _count(
    client: LedgerClient, underreplication: Underreplication, rows: dict[str, dict[str, Any]]
) -> None:
    async for ledger_id in client.list_ledgers():
        try:
            metadata = await client.metadata(ledger_id)
        except (NoSuchLedgerError, MalformedMetadataError):
            continue
        mark = await underreplication.read_mark(ledger_id)
        for name in sorted(bookies_of(metadata)):
            # A bookie without a cookie has left, or belongs to another cluster.
            row = rows.setdefault(
                name,
                {"bookie": name, "state": "away", "answers": False, "refuses": False, "order": None}
                | dict.fromkeys(("ledgers", "at_writers", "marked"), 0),
            )
            row["ledgers"] += 1
            if not metadata.closed and name in metadata.last_fragment.ensemble:
                row["at_writers"] += 1
            if mark is not None and name in mark.missing:
                row["marked"] += 1


@bookies.command("read-only", short_help="Make a bookie read-only, or writable again.")
@click.argument("bookie")
@click.option("--off", is_flag=True, help="Let the bookie take entries again.")
@other_instance_option
@bookie_options
@zookeeper_options
def read_only(bookie: str, off: bool, zookeeper: str, root: str) -> None:
    """Make a bookie read-only: it serves the entries that it has, and takes no new ones.

    The order holds across restarts, until `--off`.
    """
    work = partial(_read_only, root=root, bookie=BookieId(bookie), off=off)
    click.echo(run_on_ledgers(zookeeper, root, work, writes=True))


async def _read_only(store: MetadataStore, root: str, bookie: BookieId, off: bool) -> str:
    """Give or withdraw the order; return a sentence on the state of the bookie afterwards."""
    paths = LedgerPaths(root)
    orders = AdminStates(store, paths)
    await _check_known(store, paths, bookie)
    order = await orders.read(bookie)
    if order is not None and order.kind is not AdminState.READ_ONLY:
        raise UserError(
            f"{bookie} was asked to {order.kind.value}: `daybook bookies recommission {bookie}`"
            " takes it back."
        )
    if off:
        await orders.withdraw(bookie)
        return await _without_order(store, paths, bookie)
    await orders.give(bookie, AdminRecord(AdminState.READ_ONLY, SystemClock().now_ms()))
    async with open_client(store, root) as client:
        try:
            await _decommission(store, client, root, bookie).wait_read_only()
        except DecommissionError as error:
            raise UserError(f"{error}.") from error
    return f"{bookie} takes no new entries."


async def _without_order(store: MetadataStore, paths: LedgerPaths, bookie: BookieId) -> str:
    """Return a sentence on the state of a bookie whose order was withdrawn.

    The bookie may have other reasons to be read-only.
    """
    with trio.move_on_after(_OBEY_S):
        while True:
            changed = trio.Event()  # set by the watch of the next read, so no change is missed
            if bookie in await writable_bookies(store, paths, changed.set):
                return f"{bookie} takes entries again."
            if bookie not in await readonly_bookies(store, paths):
                return f"{bookie} is away; it takes entries again when it is back."
            await changed.wait()
    return (
        f"The order is withdrawn, but {bookie} takes no new entries yet, for another reason: an"
        " order over HTTP, a full disk, or a ledger in limbo; /healthz on its HTTP port says more."
    )


@bookies.command(short_help="Move all copies away from a bookie, and remove it.")
@click.argument("bookie")
@click.option(
    "--wait-retention",
    is_flag=True,
    help="Copy nothing: wait until retention has deleted everything.",
)
@click.option(
    "--no-wait", is_flag=True, help="Give the order and return; auto-recovery carries it out."
)
@click.option("--cancel", is_flag=True, help="The same as `recommission`.")
@other_instance_option
@bookie_options
@zookeeper_options
@output_option
def decommission(
    bookie: str,
    wait_retention: bool,
    no_wait: bool,
    cancel: bool,
    zookeeper: str,
    root: str,
    output: OutputFormat,
) -> None:
    """Remove a bookie from the cluster.

    The bookie takes no new entries and serves the old ones, while they are copied to other bookies.
    When no ledger names it any more, its cookie is deleted, and the bookie may be stopped.  No
    entry has fewer copies meanwhile.  The command may be interrupted and run again.
    """
    if cancel:
        if wait_retention or no_wait:
            raise click.UsageError("--cancel withdraws the order: leave out the other options.")
        run_on_ledgers(
            zookeeper, root, partial(_recommission, root=root, bookie=BookieId(bookie)), writes=True
        )
        if output == "json":
            write_record({"bookie": bookie, "state": "taken back"}, output)
        else:
            click.echo(f"{bookie} is taken back.")
        return
    work = partial(
        _run_decommission,
        root=root,
        bookie=BookieId(bookie),
        wait_retention=wait_retention,
        no_wait=no_wait,
    )
    running = run_on_ledgers(zookeeper, root, work, writes=True)
    record: dict[str, Any] = {
        "bookie": bookie,
        "state": "ordered" if no_wait else "left",
        "running": running,
    }
    if output == "json":
        write_record(record, output)
    elif no_wait:
        click.echo(f"{bookie} leaves: `daybook bookies health` shows what still names it.")
    else:
        click.echo(f"Nothing names {bookie} any more." + (" It may be stopped." * running))


async def _run_decommission(
    store: MetadataStore,
    root: str,
    bookie: BookieId,
    wait_retention: bool,
    no_wait: bool,
) -> bool:
    async with open_client(store, root) as client, open_progress(bookie) as advance:
        leaving = _decommission(store, client, root, bookie)
        try:
            if no_wait:
                await leaving.request(wait_retention=wait_retention)
            else:
                await leaving.run(wait_retention=wait_retention, on_progress=_progress_of(advance))
        except DecommissionError as error:
            raise UserError(f"{error}.") from error
        except (KeyboardInterrupt, trio.Cancelled):
            _say_order_stands(bookie)
            raise
        return await is_registered(Underreplication(store, LedgerPaths(root), ""), bookie)


def _say_order_stands(bookie: BookieId) -> None:
    """Tell the user, who interrupted the command, that the order stays."""
    click.echo(
        f"{bookie} stays read-only, and leaves if it was told to: run the command again to"
        f" continue, or take the bookie back with `daybook bookies recommission {bookie}`.",
        err=True,
    )


def _progress_of(advance: Advance) -> Callable[[RemainingLedgers], None]:
    """Return a callback that shows the rest, and reports once if all of it waits for writers."""
    most: list[RemainingLedgers] = []
    said: list[bool] = []

    def told(kept: RemainingLedgers) -> None:
        if not most or kept.size > most[0].size or len(kept.ledgers) > len(most[0].ledgers):
            most[:] = [kept]
        now = f"{len(kept.ledgers)} ledgers, {as_bytes(kept.size)}"
        if kept.at_writers:
            now += f"; {len(kept.at_writers)} are open: they go when their writers roll or close"
        total = len(most[0].ledgers)
        advance(total - len(kept.ledgers), max(1, total), now)
        if kept.ledgers and kept.ledgers == kept.at_writers and not said:
            said.append(True)
            shown = " ".join(map(str, kept.at_writers[:_SHOWN]))
            click.echo(
                f"Waiting for the writers of {len(kept.at_writers)} open ledgers ({shown}"
                f"{' ...' if len(kept.at_writers) > _SHOWN else ''}): they let it go when they"
                " write, roll or close.  `daybook ledgers recover` ends one whose writer is gone.",
                err=True,
            )

    return told


def _decommission(
    store: MetadataStore, client: LedgerClient, root: str, bookie: BookieId
) -> Decommission:
    paths = LedgerPaths(root)
    underreplication = Underreplication(store, paths, "decommission")
    return Decommission(client.context, underreplication, AdminStates(store, paths), bookie)


@bookies.command(short_help="Take back a bookie that was told to leave.")
@click.argument("bookie")
@other_instance_option
@bookie_options
@zookeeper_options
def recommission(bookie: str, zookeeper: str, root: str) -> None:
    """Take back a bookie that was told to leave, or has left, so that it takes entries again.

    Copies that were moved stay where they are.  A bookie that has left is first started with empty
    directories; it takes no new entries until this command.
    """
    run_on_ledgers(
        zookeeper, root, partial(_recommission, root=root, bookie=BookieId(bookie)), writes=True
    )
    click.echo(f"{bookie} is taken back.")


async def _recommission(store: MetadataStore, root: str, bookie: BookieId) -> None:
    orders = AdminStates(store, LedgerPaths(root))
    order = await orders.read(bookie)
    if order is None:
        await _check_known(store, LedgerPaths(root), bookie)
        raise UserError(f"{bookie} was not told to leave: `daybook bookies health` shows orders.")
    if order.kind is not AdminState.LEFT:
        await orders.withdraw(bookie)
        return
    async with open_client(store, root) as client:
        try:
            await _readmission(store, client, root, bookie).admit()
        except DecommissionError as error:
            raise UserError(f"{error}.") from error


def _readmission(
    store: MetadataStore, client: LedgerClient, root: str, bookie: BookieId
) -> Readmission:
    paths = LedgerPaths(root)
    underreplication = Underreplication(store, paths, "readmission")
    return Readmission(client.context, underreplication, AdminStates(store, paths), bookie)


@bookies.command("replace-disk", short_help="Empty a bookie, and bring it back with new disks.")
@click.argument("bookie")
@click.option("--no-wait", is_flag=True, help="Return when the disks may be replaced.")
@other_instance_option
@bookie_options
@zookeeper_options
@output_option
def replace_disk(
    bookie: str, no_wait: bool, zookeeper: str, root: str, output: OutputFormat
) -> None:
    """Replace the disks of a bookie, or start it again after one of them was lost.

    First all its entries are copied to other bookies, as `decommission` does; the bookie may be
    running or not.  Then stop it, empty its directories, and start it again: it takes no new
    entries until the fences of its old disks are restored.  The command may be interrupted and run
    again.
    """
    work = partial(_replace_disk, root=root, bookie=BookieId(bookie), no_wait=no_wait)
    fenced = run_on_ledgers(zookeeper, root, work, writes=True)
    state = "empty" if fenced is None else "replaced"
    if output == "json":
        write_record({"bookie": bookie, "state": state, "fenced": fenced}, output)
    elif fenced is None:
        click.echo(f"{_may_be_emptied(bookie)}, and run this command again.")
    else:
        click.echo(f"{bookie} is back, and takes entries; {fenced} ledgers were fenced there.")


def _may_be_emptied(bookie: str) -> str:
    return f"Nothing on {bookie} is needed any more: stop it, empty its directories, start it"


async def _replace_disk(
    store: MetadataStore, root: str, bookie: BookieId, no_wait: bool
) -> int | None:
    orders = AdminStates(store, LedgerPaths(root))
    async with open_client(store, root) as client, open_progress(bookie) as advance:
        replacement = DiskReplacement(
            _decommission(store, client, root, bookie),
            _readmission(store, client, root, bookie),
            orders,
        )
        try:
            await replacement.empty(_progress_of(advance))
            if not await replacement.is_back():
                if no_wait:
                    return None
                click.echo(f"{_may_be_emptied(bookie)}; waiting for it.", err=True)
            return await replacement.finish(lambda count: advance(0, 1, f"{count} fenced"))
        except DecommissionError as error:
            raise UserError(f"{error}.") from error
        except (KeyboardInterrupt, trio.Cancelled):
            _say_order_stands(bookie)
            raise


async def _check_known(store: MetadataStore, paths: LedgerPaths, bookie: BookieId) -> None:
    if bookie not in await known_bookies(store, paths):
        raise UserError(f"There is no bookie {bookie}: `daybook bookies list` shows which exist.")


@bookies.command(short_help="Bring back a bookie of a standalone cluster that lost its directory.")
@click.argument("bookie")
@click.option(
    "--set-aside",
    is_flag=True,
    help="Rename a damaged directory to DIRECTORY.lost-1 first.",
)
@dir_option
def repair(bookie: str, set_aside: bool, directory: Path) -> None:
    """Bring back BOOKIE, a name such as bookie-1 or its HOST:PORT, that does not start.

    BOOKIE belongs to a standalone cluster, and its directory was emptied or, with --set-aside,
    damaged.  The bookie starts with the entries that it has, answers 'unknown' for all others, and
    copies its entries back from the other bookies while it serves.  Nothing is deleted.
    """
    directory = directory.absolute()
    part = _find(directory, bookie)
    name = part["name"]
    if part["state"] in ("running", "paused"):
        raise UserError(f"{name} is {part['state']}, and needs no repair to start.")
    ask(directory, "stop", name)
    config = directory / "conf" / f"{name}.toml"
    if set_aside:
        for lost in tomllib.loads(config.read_text())["directories"]:
            _set_aside(Path(lost))
    _give_cookies(name, config)
    ask(directory, "start", name)
    click.echo(
        f"{name} runs again, and copies back what it lost: `daybook autorecovery status` and"
        " `daybook bookies health` show how far it is."
    )


def _find(directory: Path, bookie: str) -> dict[str, Any]:
    """Return the part with that name or address.  Raise `UserError` if there is none."""
    bookies = [p for p in ask(directory, "status", None) if p["name"].startswith("bookie-")]
    for part in bookies:
        if bookie in (part["name"], part["address"]):
            return part
    there = ", ".join(f"{part['name']} ({part['address']})" for part in bookies)
    raise UserError(f"There is no bookie {bookie} in {directory}; there are {there}.")


def _set_aside(lost: Path) -> None:
    if not lost.exists():
        return
    number = 1
    while (target := lost.with_name(f"{lost.name}.lost-{number}")).exists():
        number += 1
    lost.rename(target)
    click.echo(f"{lost} was renamed to {target}.", err=True)


def _give_cookies(name: str, config: Path) -> None:
    """Run `--repair-cookie`.  Raise `UserError` with the reason of the bookie if it refuses."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "daybook.bookie.server",
            "--config",
            config,
            "--repair-cookie",
        ],
        env={k: v for k, v in os.environ.items() if not is_for_one_part(k)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    why = reason_in(done.stderr)
    if done.returncode and not why.startswith("nothing to repair"):
        raise UserError(
            f"{name} cannot be repaired, and stays down: {why.rstrip('.')}.  If its directory is"
            " useless, add --set-aside: the directory is renamed, and nothing in it is deleted."
        )
