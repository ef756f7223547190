"""Change a record by compare-and-swap, however often others change it, and whatever is unknown.

    record = await update(store, path, lambda value: with_ledger(value, ledger_id))

The change is a pure function of the value: it returns the new value, or None if there is nothing
(more) to do.  That None is also what makes it safe to repeat: when a write had no answer, the
record is read again, and either

    it has the next version and our value    it was written, by us (or by somebody who wrote the
                                              same, which comes to the same)
    it has the version that it had           it was not written so far: write again, under the same
                                              condition, so that only one of the two can succeed
    it has any other version                 others went on from there: ask the change again; it
                                              has to recognize its own work in what it sees

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

_ATTEMPTS = 64  # Each lost race is somebody else's success; so many in a row are a mistake.


async def update(
    store: MetadataStore,
    path: str,
    change: Callable[[bytes], bytes | None],
    *,
    known: Record | None = None,
) -> tuple[bytes, int]:
    """Apply `change`; return the value and the version that the record has (had) because of it, or
    that made the change say that nothing is to be done.  `known` saves the first read.

    `NoRecordError` if the record is not there.  `StoreUnavailableError`: not changed by us.
    `OutcomeUnknownError`: maybe changed.
    """
    record = known or await _read(store, path)
    for _ in range(_ATTEMPTS):
        value = change(record.value)
        if value is None:
            return record.value, record.stat.version
        version = record.stat.version
        try:
            return value, await store.set(path, value, version)
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
