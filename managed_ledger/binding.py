"""Decides if the lists of a metadata store were written with the ledgers of one root.

A list fits if its last ledger exists below the root and does not name another owner, and if the
list does not name another instance.  A list that cannot be judged does not fit.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from daybook.bookie.errors import LayoutError, LedgerError
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.registry.instance import (
    InstanceBinding,
    check_binding,
    create_binding,
    read_binding,
    root_instance_id,
)
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.managed_ledger.errors import ForeignListsError, ManagedLedgerError
from daybook.managed_ledger.records import (
    INSTANCE,
    ROOT,
    LedgerOwner,
    get_property,
    log_path,
    parse,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.metadata.store import MetadataStore, NoRecordError
from daybook.wire.metadata.update import update

JUDGED_MAX = 100
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Misfit:
    """A list that does not fit the root, and the reason."""

    log: str
    why: str

    def __str__(self) -> str:
        return f"{self.log}: {self.why}"


async def log_names(store: MetadataStore) -> AsyncIterator[str]:
    """Yield the names of all logs, in order."""
    for tenant in sorted(await store.get_children(ROOT) or []):
        for namespace in sorted(await store.get_children(f"{ROOT}/{tenant}") or []):
            parent = f"{tenant}/{namespace}/persistent"
            for topic in sorted(await store.get_children(f"{ROOT}/{parent}") or []):
                yield f"{parent}/{topic}"


async def misfits(
    store: MetadataStore,
    paths: LedgerPaths,
    instance_id: str | None,
    at_most: int | None = None,
    *,
    formerly: str | None = None,
) -> list[Misfit]:
    """Look at up to `at_most` lists (None: all) and return those that do not fit.

    Nothing is changed.  `instance_id` is that of the root; None if the root has none.  A list may
    also name the instance `formerly`, since it may have been restored from a copy.  Raise
    MetadataError.
    """
    found: list[Misfit] = []
    judged = 0
    metadata_store = LedgerMetadataStore(store, paths, Random(0))  # noqa: S311  It creates nothing.
    async for name in log_names(store):
        if at_most is not None and judged == at_most:
            break
        judged += 1
        why = await _misfit(store, metadata_store, name, (instance_id, formerly))
        if why is not None:
            found.append(Misfit(name, why))
    return found


async def _misfit(
    store: MetadataStore,
    metadata_store: LedgerMetadataStore,
    name: str,
    named: tuple[str | None, ...],
) -> str | None:
    """Return the reason why a list does not fit; None if it fits.

    A list that changed meanwhile is judged again, since its ledger may have been deleted with the
    change.
    """
    path, seen = log_path(name), -1
    while True:
        await store.sync(path)
        record = await store.get(path)
        if record is None:
            return None  # The log was deleted.
        try:
            info = parse(ManagedLedgerInfo(), record.value, path)
            why = await _misfit_of(metadata_store, name, info, named)
        except (ManagedLedgerError, LedgerError) as error:
            why = str(error)
        if why is None or record.stat.version == seen:
            return why
        seen = record.stat.version


async def _misfit_of(
    metadata_store: LedgerMetadataStore,
    name: str,
    info: ManagedLedgerInfo,
    named: tuple[str | None, ...],
) -> str | None:
    instance = get_property(info.properties, INSTANCE)
    if instance is not None and instance not in named:
        return f"its list belongs to the instance {instance}"
    if not info.ledgerInfo:
        return None
    ledger_id = info.ledgerInfo[-1].ledgerId
    if ledger_id < 0:
        return f"it lists the ledger {ledger_id}, which there cannot be"
    stored = await metadata_store.read(ledger_id)
    other = LedgerOwner(name).contradicted_by(stored.metadata.custom)
    return None if other is None else f"its ledger {ledger_id} belongs to {other} there"


async def bind(
    store: MetadataStore, paths: LedgerPaths, rng: Random, where: str
) -> InstanceBinding | None:
    """Check that the topics of this metadata store belong to the ledgers of the root.

    The first broker that finds no contradiction records that.  Return None for a root without an
    INSTANCEID, made by an old BookKeeper, since nothing can name it.  Raise ForeignInstanceError,
    ForeignListsError, RegistryError or MetadataError; nothing was changed then.
    """
    bound = await read_binding(store)
    if bound is not None:
        check_binding(bound, await _root_instance(store, paths), where)
        return bound
    instance_id = await _root_instance(store, paths)
    wrong = await misfits(store, paths, instance_id, JUDGED_MAX)
    if wrong:
        raise ForeignListsError(_refusal(wrong, where, paths))
    if instance_id is None:
        if await store.get(paths.layout) is not None:
            return None  # With a new id in the root its bookies would not start any more.
        instance_id = await ensure_layout(store, paths, rng)
    bound = await create_binding(store, instance_id)
    check_binding(bound, instance_id, where)
    return bound


async def rebind_list(store: MetadataStore, name: str, instance_id: str) -> bool:
    """Write the instance into a list; return False if the list is gone or names it already.

    A broker that has the log open loses it, since the version of the list changes.  Raise
    MetadataError.
    """

    def change(value: bytes) -> bytes | None:
        info = parse(ManagedLedgerInfo(), value, name)
        if get_property(info.properties, INSTANCE) in (None, instance_id):
            return None  # A list without the property gets it with its next write.
        set_property(info, INSTANCE, instance_id)
        return info.SerializeToString()

    path = log_path(name)
    record = await store.get(path)
    if record is None or change(record.value) is None:
        return False
    with suppress(NoRecordError):
        await update(store, path, change, known=record)
    return True


async def _root_instance(store: MetadataStore, paths: LedgerPaths) -> str | None:
    try:
        return await root_instance_id(store, paths)
    except LayoutError:
        return None


def _refusal(wrong: list[Misfit], where: str, paths: LedgerPaths) -> str:
    shown = "; ".join(str(each) for each in wrong[:_SHOWN])
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return (
        f"nothing says yet which ledgers the topics of this ZooKeeper are kept in, and the ledgers"
        f" at {where} do not fit {len(wrong)} of the lists that were looked at ({shown}{more})."
        " Nothing was changed. If another `ledgers_root` is the right one, set it; if this one is,"
        f" say so once with `daybook cluster bind --ledgers-root {paths.root}`"
    )
