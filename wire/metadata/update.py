"""Change a record by compare-and-swap, even if others change it or an outcome is unknown.

    record = await update(store, path, lambda value: with_ledger(value, ledger_id))

The change is a pure function of the value: it returns the new value, or None if there is nothing
(more) to do.  The None also makes it safe to repeat the change: if a write got no answer, the
record is read again, and one of three cases holds:

    it has the next version and our value    the write was carried out (or another host wrote the
                                              same value, which has the same effect)
    it has the version that it had           the write was not carried out yet: write again, under
                                              the same condition, so that only one write succeeds
    it has any other version                 others changed it since: call the change again; it has
                                              to recognize its own work in the new value

So values that two hosts could write independently have to carry something that tells them apart.
"""

from collections.abc import Callable

from daybook.wire.metadata.store import (
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    Record,
    StoreUnavailableError,
    VersionConflictError,
)

_ATTEMPTS = 64  # Each lost race is another host's success; so many in a row are a mistake.


async def update(
    store: MetadataStore,
    path: str,
    change: Callable[[bytes], bytes | None],
    *,
    known: Record | None = None,
) -> tuple[bytes, int]:
    """Apply `change` until its outcome is known; return the value and version of the record.

    They are those that the write left, or those for which `change` returned None.  `known` saves
    the first read.  Raise NoRecordError if the record does not exist, StoreUnavailableError if this
    host did not change it, OutcomeUnknownError if it may have been changed.
    """
    record = known or await _read(store, path)
    for _ in range(_ATTEMPTS):
        value = change(record.value)
        if value is None:
            return record.value, record.stat.version
        version = record.stat.version
        try:
            return value, (await store.set(path, value, version)).version
        except VersionConflictError:
            record = await _read(store, path)
        except OutcomeUnknownError as unknown:
            try:
                record = await _read(store, path)
            except StoreUnavailableError as error:
                raise unknown from error
            if record.stat.version == version + 1 and record.value == value:
                return value, version + 1
    raise StoreUnavailableError(
        f"{path} was not changed: others changed it {_ATTEMPTS} times meanwhile"
    )


async def _read(store: MetadataStore, path: str) -> Record:
    record = await store.get(path)
    if record is None:
        raise NoRecordError(path)
    return record
