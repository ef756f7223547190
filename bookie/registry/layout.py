"""The root of a cluster: its creation, the check of its layout, and its instance id.

Any number of hosts may create it at once, and each of them again after a request whose outcome is
unknown: they agree on one instance id, and no host overwrites a record of another.
"""

import uuid
from random import Random

from daybook.bookie.errors import LayoutError, MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import MetadataStore, OutcomeUnknownError, RecordExistsError

LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


async def ensure_layout(store: MetadataStore, paths: LedgerPaths, rng: Random) -> str:
    """Create the records that a cluster needs, where they are missing; return the instance id.

    Any number of hosts may do so at once: they agree on one instance id.
    """
    for path in (paths.root, paths.available, paths.readonly, paths.cookies, paths.idgen):
        await ensure_record(store, path, b"")
    instance_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    await ensure_record(store, paths.instance_id, instance_id.encode())
    # The layout comes last: a root that has it has everything else (`root_instance_id`).
    await ensure_record(store, paths.layout, LAYOUT)
    await check_layout(store, paths)
    return await read_instance_id(store, paths)


async def check_layout(store: MetadataStore, paths: LedgerPaths) -> None:
    """Raise LayoutError unless the root holds ledgers in the layout that Daybook knows."""
    record = await store.get(paths.layout)
    if record is None:
        raise LayoutError(f"{paths.layout} is missing: no bookie has ever started here")
    if record.value.strip() != LAYOUT:
        found = record.value.decode(errors="replace")
        raise LayoutError(f"{paths.layout} names another layout: {found!r}")


async def read_instance_id(store: MetadataStore, paths: LedgerPaths) -> str:
    record = await store.get(paths.instance_id)
    if record is None:
        raise LayoutError(f"{paths.instance_id} is missing")
    try:
        return record.value.decode()
    except UnicodeDecodeError as error:
        raise MalformedRecordError(f"{paths.instance_id} is not text: {error}") from error


async def ensure_record(store: MetadataStore, path: str, value: bytes) -> None:
    """Create a record if it is missing; an existing one is not changed."""
    while await store.get(path) is None:
        try:
            await store.create(path, value, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            continue  # The next read shows whether the record exists now.
        return
