"""The ids of ledgers: allocation of a new one, and the list of all.

The metadata store counts, so any number of hosts can allocate ids at once and none is given twice.
An id whose request had no answer is skipped.  Ids are short while they fit into 31 bits.  After
that, or once `idgen-long` exists, an id has a generation in its upper half and a count in its lower
half.

The path of a ledger contains its id (`paths`), so listing reads no record.  The content of a
ledger's record is described in `bookie.ledger.metadata`.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import trio

from daybook.bookie.errors import LayoutError
from daybook.bookie.registry.layout import ensure_record
from daybook.bookie.registry.paths import SHORT_ID_MAX, LedgerPaths
from daybook.wire.metadata.store import (
    ANY,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    OutcomeUnknownError,
)

_ID_ATTEMPTS = 5
_LONG_GENERATIONS_KEPT = 3
_DELETIONS_MAX = 100  # in one request


class LedgerIds:
    """The allocation of ids for one host.

    The host reads only once that there is no `idgen-long`; then a watch tells when it comes.  In
    the moment before the watch fires, the host may still get a short id.  Its ledger is used like
    any other, unless it would follow a ledger with a long id on the list of a log.  Such a list
    refuses it (`LedgerIdTooLowError`), and the next attempt gets a long id.
    """

    def __init__(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self._store = store
        self._paths = paths
        self._are_short = False  # There was no `idgen-long`, and its watch has not fired since.
        self._fired = 0
        self._served: list[str] = []  # records to be deleted, since they only served to count
        self._deleting = False  # a task of the janitor deletes them

    async def new(self, janitor: trio.Nursery) -> int:
        """Return an id that no ledger has had.  Ids may be skipped.

        A task in `janitor` deletes the records that only served to count.
        """
        if self._are_short or await self._read_are_short():
            number = await self._count(f"{self._paths.idgen}/ID-", janitor)
            if 0 <= number <= SHORT_ID_MAX:
                return number
        return await self._new_long(janitor)

    async def _read_are_short(self) -> bool:
        fired = self._fired
        short = await self._store.get(self._paths.idgen_long, self._touched) is None
        # The watch may fire before this task has the answer, which is old then.
        self._are_short = short and fired == self._fired
        return short

    def _touched(self) -> None:
        self._fired += 1
        self._are_short = False

    async def _new_long(self, janitor: trio.Nursery) -> int:
        """Return generation << 32 | count.  When a count is used up, the next one begins."""
        store, root = self._store, self._paths.idgen_long
        while True:
            names = await store.get_children(root) or []
            generations = sorted(int(n[4:]) for n in names if re.fullmatch(r"HOB-\d{10}", n))
            generation = generations[-1] if generations else 1
            number = await self._count(f"{root}/HOB-{generation:010d}/ID-", janitor)
            if 0 <= number <= SHORT_ID_MAX:
                return generation << 32 | number
            await ensure_record(store, f"{root}/HOB-{generation + 1:010d}", b"")
            for old in generations[: 1 - _LONG_GENERATIONS_KEPT]:
                self._delete_later(f"{root}/HOB-{old:010d}", janitor)

    async def _count(self, prefix: str, janitor: trio.Nursery) -> int:
        """Return the number that the store gives to a new record; it is negative on overflow."""
        for attempt in range(_ID_ATTEMPTS):
            try:
                path = await self._store.create(
                    prefix, b"", ephemeral=True, sequential=True, make_parents=True
                )
            except OutcomeUnknownError:
                if attempt + 1 == _ID_ATTEMPTS:
                    raise
                continue  # That number is skipped; its record is deleted with the session.
            self._delete_later(path, janitor)
            return int(path[len(prefix) :])
        raise AssertionError("the loop above returns or raises")

    # -- records that have served

    def _delete_later(self, path: str, janitor: trio.Nursery) -> None:
        """Delete a record soon.  Those that come while a deletion is under way share the next."""
        self._served.append(path)
        if not self._deleting:
            self._deleting = True
            janitor.start_soon(self._delete_served)

    async def _delete_served(self) -> None:
        try:
            while self._served:
                paths, self._served = self._served[:_DELETIONS_MAX], self._served[_DELETIONS_MAX:]
                await _delete_all(self._store, paths)
        finally:
            self._deleting = False


async def _delete_all(store: MetadataStore, paths: Sequence[str]) -> None:
    """Delete records.  One that cannot be deleted stays; the record of a number is ephemeral."""
    if len(paths) > 1:
        try:
            await store.multi([Delete(path, ANY) for path in paths])
        except (NoRecordError, NotEmptyError):
            pass  # Nothing was done, because one of them is gone or has children.
        except MetadataError:
            return
        else:
            return
    for path in paths:
        with suppress(MetadataError):
            await store.delete(path, ANY)


async def prune_parents(store: MetadataStore, paths: LedgerPaths, ledger_id: int) -> None:
    """Delete the parents of a deleted ledger's record that are empty now."""
    path = paths.ledger(ledger_id)
    while (path := path.rpartition("/")[0]) != paths.root:
        try:
            # Most parents have children.  A look costs less than a write that is refused.
            record = await store.get(path)
            if record is not None and record.stat.children_count:
                return
            await store.delete(path, ANY)
        except NoRecordError:
            continue
        except MetadataError:
            return  # The parent has children, or the store is away; an empty one does no harm.


async def list_ledgers(store: MetadataStore, paths: LedgerPaths) -> AsyncIterator[int]:
    """Yield the ids of all ledgers, ascending.

    Ledgers that are created or deleted meanwhile may or may not be among them.  A failed read
    raises; a listing that reaches its end has missed no ledger that existed all the time.
    """
    top = await store.get_children(paths.root)
    if top is None:
        raise LayoutError(f"{paths.root} is missing")
    for first_digits, depth in ((2, 1), (3, 3)):
        for name in top:
            if len(name) == first_digits and name.isdecimal():
                async for ledger_id in _list_below(store, f"{paths.root}/{name}", name, depth):
                    yield ledger_id


async def _list_below(
    store: MetadataStore, path: str, digits: str, depth: int
) -> AsyncIterator[int]:
    names = await store.get_children(path) or []  # None: the record was pruned meanwhile
    for name in names:
        if depth == 0 and re.fullmatch(r"L\d{4}", name):
            yield int(digits + name[1:])
        elif depth and re.fullmatch(r"\d{4}", name):
            async for ledger_id in _list_below(store, f"{path}/{name}", digits + name, depth - 1):
                yield ledger_id
