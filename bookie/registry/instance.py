"""The record `/daybook/instance`: which ledgers the topics of a metadata store are stored in.

A root of ledgers has an id, its INSTANCEID.  Topics and their lists of ledgers lie beside the
roots, so only this record says which of several roots they belong to.  It holds the id and no path,
because `zk:2181` with `/p/ledgers` and `zk:2181/p` with `/ledgers` are the same ledgers.

    {"instanceId":"8a6f...","version":1}
"""

from contextlib import suppress
from dataclasses import dataclass

import msgspec

from daybook.bookie.errors import ForeignInstanceError, LayoutError, MalformedRecordError
from daybook.bookie.registry.layout import read_instance_id
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import MetadataStore, OutcomeUnknownError, RecordExistsError

PATH = "/daybook/instance"
_VERSION = 1


class InstanceRecord(msgspec.Struct, rename="camel"):
    instance_id: str
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class InstanceBinding:
    """The content of the record, and its version."""

    instance_id: str
    version: int


async def read_binding(store: MetadataStore) -> InstanceBinding | None:
    """Return the newest record, or None.  Raise MalformedRecordError or MetadataError."""
    await store.sync(PATH)
    record = await store.get(PATH)
    if record is None:
        return None
    try:
        found = msgspec.json.decode(record.value, type=InstanceRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecordError(
            f"{PATH} does not parse ({error}), so it is unknown which ledgers the topics are stored"
            " in. Inspect the record before starting anything; `daybook cluster rebind` rewrites it"
        ) from None
    if found.version != _VERSION:
        raise MalformedRecordError(
            f"{PATH} has version {found.version}, and this process knows version {_VERSION}: a"
            " newer release has written it. Start that release"
        )
    return InstanceBinding(found.instance_id, record.stat.version)


def encode_binding(instance_id: str) -> bytes:
    return msgspec.json.encode(InstanceRecord(instance_id))


async def create_binding(store: MetadataStore, instance_id: str) -> InstanceBinding:
    """Create the record unless another process was faster; return the record that is there."""
    while True:
        with suppress(RecordExistsError, OutcomeUnknownError):  # The read shows what is there.
            await store.create(PATH, encode_binding(instance_id), make_parents=True)
        found = await read_binding(store)
        if found is not None:
            return found


async def root_instance_id(store: MetadataStore, paths: LedgerPaths) -> str | None:
    """Return the id of a root; None if no cluster was ever created there.

    Raise LayoutError for a root that has a layout and no id.
    """
    try:
        return await read_instance_id(store, paths)
    except LayoutError:
        if await store.get(paths.layout) is None:
            return None
        raise


def check_binding(bound: InstanceBinding, instance_id: str | None, where: str) -> None:
    """Raise ForeignInstanceError unless the topics are stored in the ledgers of this instance."""
    if instance_id == bound.instance_id:
        return
    found = f"INSTANCEID {instance_id}" if instance_id else "no INSTANCEID: no bookie has started"
    raise ForeignInstanceError(
        f"the topics of this ZooKeeper are not stored in the ledgers at {where}: there is {found},"
        f" and {PATH} names {bound.instance_id}. Set `ledgers_root` (--ledgers-root) and"
        " `zookeeper` as the other brokers have them: `daybook cluster show` tells more. If ledgers"
        " or ZooKeeper were restored from a copy on purpose, use `daybook cluster rebind`"
    )
