"""`daybook cluster`: show or change which ledgers the topics of a ZooKeeper are bound to.

`cluster_security` has the commands that protect the records.

    daybook cluster show
    daybook cluster bind --ledgers-root /ledgers
    daybook cluster rebind --ledgers-root /ledgers

The first broker of a cluster binds the topics, unless their lists name other ledgers.
Exit codes of `show`: 0 the topics are bound to these ledgers, 3 they are not.
"""

import sys
from functools import partial
from typing import Any

import click
import msgspec

from daybook.bookie.errors import LayoutError, MalformedRecordError
from daybook.bookie.registry.instance import (
    PATH,
    InstanceBinding,
    create_binding,
    encode_binding,
    read_binding,
    root_instance_id,
)
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.cli.cluster_security import identity, secure_metadata
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.metadata import run_with_store
from daybook.clients.cli.options import zookeeper_options
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.managed_ledger.binding import Misfit, log_names, misfits, rebind_list
from daybook.wire.metadata.store import ANY, MetadataStore, VersionConflictError

_GUARDS, _CLUSTERS = "/daybook/guards", "/admin/clusters"
_BROKER_COLUMNS = ("broker", "instance")
_UNBOUND = 3
_SHOWN = 10


@click.group()
def cluster() -> None:
    """Show or change which ledgers the topics are bound to.

    Bookies store messages in ledgers: append-only logs, each replicated on several bookies.
    ZooKeeper holds the list of ledgers of each topic.  The topics are bound to one set of ledgers,
    those below a path in ZooKeeper, so that a broker with the wrong path cannot damage them.  The
    first broker of a cluster binds them; these commands are needed after a restore.

    `secure-metadata` protects the records in ZooKeeper.
    """


cluster.add_command(identity)
cluster.add_command(secure_metadata)


# -- show


@cluster.command(short_help="Show which ledgers the topics are bound to, and the brokers.")
@zookeeper_options
@output_option
def show(zookeeper: str, root: str, output: OutputFormat) -> None:
    """Show which ledgers the topics are bound to, those below the root, and the brokers.

    The exit code is 3 unless the topics are bound to the ledgers below that root.
    """
    record, brokers = run_with_store(zookeeper, partial(_show, root=root))
    if output == "json":
        write_record({**record, "brokers": brokers}, output)
    else:
        write_record(record, output)
        if brokers:
            click.echo()
            write_rows(brokers, _BROKER_COLUMNS, output)
    if record["topics_in"] is None or record["topics_in"] != record["instance"]:
        sys.exit(_UNBOUND)


async def _show(
    store: MetadataStore, root: str
) -> tuple[dict[str, Any], list[dict[str, str | None]]]:
    bound = await read_binding(store)
    names = await store.get_children(_CLUSTERS) or []
    record = {
        "topics_in": None if bound is None else bound.instance_id,
        "ledgers_root": root,
        "instance": await _instance_of(store, root),
        "cluster_names": ", ".join(sorted(names)) or None,
    }
    return record, await _brokers(store)


async def _brokers(store: MetadataStore) -> list[dict[str, str | None]]:
    """Return the Daybook brokers that run now; older releases do not report their instance."""
    rows: list[dict[str, str | None]] = []
    for name in sorted(await store.get_children(_GUARDS) or []):
        record = await store.get(f"{_GUARDS}/{name}")
        if record is not None:
            said = _said(record.value)
            rows.append({"broker": said.get("brokerId") or name, "instance": said.get("instance")})
    return rows


def _said(value: bytes) -> dict[str, str]:
    try:
        found = msgspec.json.decode(value, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {key: text for key, text in found.items() if isinstance(text, str)}


async def _instance_of(store: MetadataStore, root: str) -> str | None:
    try:
        return await root_instance_id(store, LedgerPaths(root))
    except LayoutError:
        return None


# -- bind


@cluster.command(short_help="Bind the topics to the ledgers below a root.")
@click.option("--yes", is_flag=True, help="Do not ask, even if lists name other ledgers.")
@zookeeper_options
def bind(yes: bool, zookeeper: str, root: str) -> None:
    """Bind the topics of this ZooKeeper to the ledgers below a root, if they are not bound yet.

    A broker does this by itself unless lists of ledgers name other ones.  This command checks all
    lists; a topic whose list does not match these ledgers cannot be opened afterwards.
    """
    instance_id, wrong = run_with_store(zookeeper, partial(_look_to_bind, root=root))
    if instance_id is None:
        click.echo(f"The topics are bound to the ledgers below {root} already.")
        return
    _confirm(wrong, root, yes=yes)
    bound = run_with_store(zookeeper, lambda store: create_binding(store, instance_id))
    if bound.instance_id != instance_id:
        raise _bound_elsewhere(bound, root, instance_id)
    click.echo(f"The topics are bound to the ledgers below {root}: instance {instance_id}.")


async def _look_to_bind(store: MetadataStore, root: str) -> tuple[str | None, list[Misfit]]:
    """Return the instance to bind to, None if it is bound already; and the misfits."""
    instance_id, bound = await _known_instance(store, root), await read_binding(store)
    if bound is not None and bound.instance_id != instance_id:
        raise _bound_elsewhere(bound, root, instance_id)
    if bound is not None:
        return None, []
    return instance_id, await misfits(store, LedgerPaths(root), instance_id)


async def _known_instance(store: MetadataStore, root: str) -> str:
    instance_id = await root_instance_id(store, LedgerPaths(root))
    if instance_id is None:
        raise UserError(
            f"There are no ledgers below {root} in ZooKeeper: name their path with --ledgers-root,"
            " or start a bookie first, which creates it."
        )
    return instance_id


def _bound_elsewhere(bound: InstanceBinding, root: str, instance_id: str) -> UserError:
    return UserError(
        f"The topics are bound to the instance {bound.instance_id}, and the ledgers below {root}"
        f" are {instance_id}: if ledgers or ZooKeeper were restored from a copy on purpose, use"
        " `daybook cluster rebind`."
    )


def _confirm(wrong: list[Misfit], root: str, *, yes: bool) -> None:
    if not wrong:
        return
    _show_misfits(wrong)
    confirm(
        f"{len(wrong)} topics do not fit the ledgers below {root} and will not open. Continue?",
        yes=yes,
    )


def _show_misfits(wrong: list[Misfit]) -> None:
    for each in wrong[:_SHOWN]:
        click.echo(f"{each}.", err=True)
    if len(wrong) > _SHOWN:
        click.echo(f"... and {len(wrong) - _SHOWN} more.", err=True)


# -- rebind


@cluster.command(short_help="Bind the topics to other ledgers, after a restore.")
@yes_option
@click.option(
    "--leave-foreign",
    is_flag=True,
    help="Continue if lists name other ledgers; these lists stay as they are, and their topics do"
    " not open.",
)
@zookeeper_options
def rebind(yes: bool, leave_foreign: bool, zookeeper: str, root: str) -> None:
    """Bind the topics to the ledgers below a root, even if they are bound to others.

    Use it after ledgers or ZooKeeper were restored from a copy, which changes the id of the
    ledgers.  All brokers must be stopped.  A list that names another instance is changed if its
    last ledger proves that it belongs to these ledgers.  The command may be interrupted and run
    again.
    """
    found = run_with_store(zookeeper, partial(_look_to_rebind, root=root))
    instance_id, before, wrong = found
    if wrong:
        _show_misfits(wrong)
    if wrong and not leave_foreign:
        raise UserError(
            f"{len(wrong)} topics do not fit the ledgers below {root}, and nothing was changed. Is"
            " --ledgers-root right?  With --leave-foreign the command continues without these"
            " topics, which do not open then."
        )
    confirm(
        f"Bind the topics to the ledgers below {root} (instance {instance_id}, before: {before})?",
        yes=yes,
    )
    left = frozenset(each.log for each in wrong)
    work = partial(_rebind, instance_id=instance_id, left=left)
    changed = run_with_store(zookeeper, work)
    click.echo(
        f"The topics are bound to the ledgers below {root}: instance {instance_id}. Lists changed:"
        f" {changed}."
    )


async def _look_to_rebind(store: MetadataStore, root: str) -> tuple[str, str, list[Misfit]]:
    await _check_nobody_is_there(store)
    instance_id = await _known_instance(store, root)
    try:
        bound = await read_binding(store)
    except MalformedRecordError as error:
        click.echo(f"{error}.", err=True)
        bound = None
    former = None if bound is None else bound.instance_id
    wrong = await misfits(store, LedgerPaths(root), instance_id, formerly=former)
    return instance_id, former or "nothing", wrong


async def _check_nobody_is_there(store: MetadataStore) -> None:
    there = await _brokers(store)
    if there:
        names = ", ".join(str(row["broker"]) for row in there)
        raise UserError(
            f"These brokers are still registered: {names}. Stop them first; a broker that was"
            " killed disappears some seconds later, when its session ends."
        )


async def _rebind(store: MetadataStore, instance_id: str, left: frozenset[str]) -> int:
    """Change the lists, then the record, and return how many lists were changed.

    The record is last: as long as it names the old instance, a second run finds what is left to do.
    """
    await _check_nobody_is_there(store)  # again: a broker may have started during the question
    changed = 0
    async for name in log_names(store):
        if name not in left:
            changed += await rebind_list(store, name, instance_id)
    while True:
        record = await store.get(PATH)
        if record is None:
            await create_binding(store, instance_id)
            record = await store.get(PATH)
        if record is not None and record.value == encode_binding(instance_id):
            return changed
        try:
            version = ANY if record is None else record.stat.version
            await store.set(PATH, encode_binding(instance_id), version)
        except VersionConflictError:
            continue  # another process wrote the record: read it again
