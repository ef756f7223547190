"""The ownership records of bundles: each change of one is one request to the store.

Every request names a guard, and so succeeds only while the records that were read with that guard
are still its broker's (`ownership.membership`).  Our own records go and come with our guard.  A
broker that gives a bundle hands out a `Ticket`, which names its guard and its record.

A request without an answer is in doubt: it may have been carried out.  So each returns an
`RecordOutcome`, and only the record itself tells what an outcome in doubt was.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
import trio

from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BundlesData, OwnerRecord, Successor
from daybook.broker.ownership.membership import Guard, delete_under_guard, owner_record
from daybook.broker.protocol.bundles import (
    BundleName,
    Bundles,
    bundle_name,
    namespace_of,
    parts_of,
    range_of,
)
from daybook.broker.protocol.ownership import RecordOwner
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    ANY,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    Operation,
    Record,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)

_RETRY_S = 0.1
_CONFLICTS_MAX = 100  # with other bundles of the same giver, or of the same namespace


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ownership record of a broker that gives its bundle, in the words of the store.

    `created_txid` is never used twice, so a ticket that comes late fits no later record.
    """

    guard: str
    created_txid: int


class RecordOutcome(Enum):
    """The outcome of a request to change an ownership record."""

    DONE = auto()
    NOT_DONE = auto()
    NO_RECORD = auto()  # not done: a record that it needs is gone, which may be our guard
    IN_DOUBT = auto()  # there was no answer, or the record is not what was expected: read it


class OwnerRecords:
    """The ownership records, as one broker reads and changes them.

    `on_touched` is called when a record has changed that `read` has read.
    """

    def __init__(
        self,
        store: MetadataStore,
        owner: OwnerRecord,
        policies: Policies,
        *,
        on_touched: Callable[[BundleName], None],
        log: Log,
    ) -> None:
        self._store = store
        self._ours = records.encode(owner)  # the content of each record of ours
        self._policies = policies
        self._on_touched = on_touched
        self._log = log
        self._watched: set[BundleName] = set()  # their records have a watch

    # -- reading

    async def read(self, bundle: BundleName) -> RecordOwner | None:
        """Return the owner, and have a watch on the record.  Return None without contact."""
        path = records.owner_path(bundle)
        while True:
            # At most one watch per record: each one that fires causes a read.
            watch = None if bundle in self._watched else lambda: self._touched(bundle)
            self._watched.add(bundle)
            try:
                record = await self._store.get(path, watch)
                break
            except MetadataError:
                if watch is not None:
                    self._watched.discard(bundle)
                await trio.sleep(_RETRY_S)
                if self._store.session_state is not SessionState.CONNECTED:
                    return None
        if record is None:
            return RecordOwner.NOBODY
        return RecordOwner.OURS if self._is_ours(record) else RecordOwner.OTHERS

    def _touched(self, bundle: BundleName) -> None:
        self._watched.discard(bundle)
        self._on_touched(bundle)

    async def names_us(self, bundle: BundleName) -> bool:
        """Return True if the record is ours.  Raise MetadataError."""
        record = await self._store.get(records.owner_path(bundle))
        return record is not None and self._is_ours(record)

    def _is_ours(self, record: Record) -> bool:
        return record.stat.owner == self._store.session_id

    # -- acquiring and releasing

    async def create(self, bundle: BundleName, guard: Guard) -> RecordOutcome:
        """Create our record.  DONE also proves that the bundle is not split."""
        namespace = namespace_of(bundle)
        try:
            # The version proves that the bundle is not split before its record is there.
            bundles, version = await self._policies.read_bundles(namespace)
            if range_of(bundle) not in bundles.ranges():
                self._policies.bundles_changed(namespace, bundles)
                return RecordOutcome.NOT_DONE
            operations: list[Operation] = [
                Check(guard.path, ANY),
                Check(records.local_policies_path(namespace), version),
                Create(records.owner_path(bundle), self._ours, ephemeral=True),
            ]
            await self._ensure_parent(bundle)
            await self._store.multi(operations)
        except (BrokerError, StoreUnavailableError, VersionConflictError):
            return RecordOutcome.NOT_DONE
        except NoRecordError:
            return RecordOutcome.NO_RECORD  # The check of the guard failed: a peer has removed us.
        except MetadataError:
            return RecordOutcome.IN_DOUBT
        return RecordOutcome.DONE

    async def _ensure_parent(self, bundle: BundleName) -> None:
        parent = records.owner_path(bundle).rpartition("/")[0]
        if await self._store.get(parent) is None:
            try:
                await self._store.create(parent, b"", make_parents=True)
            except RecordExistsError:
                return

    async def delete(self, bundle: BundleName, guard: Guard) -> RecordOutcome:
        """Delete our record, but never that of a successor which has taken it meanwhile.

        A taking gives our guard another version.  So the guard is read before the record.
        """
        path = records.owner_path(bundle)
        try:
            found, record = await self._store.get(guard.path), await self._store.get(path)
            if found is None or record is None or not self._is_ours(record):
                return RecordOutcome.NO_RECORD
            touch = Set(guard.path, found.value, found.stat.version)
            await self._store.multi([touch, Delete(path, record.stat.version)])
        except NoRecordError:
            return RecordOutcome.NO_RECORD
        except MetadataError:
            return RecordOutcome.IN_DOUBT
        return RecordOutcome.DONE

    # -- handing a bundle over

    async def ticket(self, bundle: BundleName, guard: Guard | None) -> Ticket:
        """Return the ticket for our record.  Raise UnavailableError if there is none now."""
        try:
            record = await self._store.get(records.owner_path(bundle))
        except MetadataError as error:
            raise UnavailableError(f"the bundle {bundle} cannot be moved now: {error}") from error
        if guard is None or record is None or not self._is_ours(record):
            raise UnavailableError(f"this broker does not own {bundle}: look it up again")
        return Ticket(guard.path, record.stat.created_txid)

    async def name_successor(
        self, bundle: BundleName, ticket: Ticket, successor: Successor
    ) -> None:
        """Name the successor in our record, for lookups at other brokers.

        It is not needed, so it is tried once.  The version of the guard shows that the record is
        still ours.
        """
        path = records.owner_path(bundle)
        with suppress(MetadataError):
            guard = await self._store.get(ticket.guard)
            record = await self._store.get(path)
            if guard is None or record is None or not self._is_ours(record):
                return
            named = owner_record(record)
            named.disabled, named.successor = True, successor
            await self._store.multi(
                [
                    Check(ticket.guard, guard.stat.version),
                    Set(path, records.encode(named), record.stat.version),
                ]
            )

    async def check(self, bundle: BundleName, ticket: Ticket) -> None:
        """Raise UnavailableError unless the ticket is that of the bundle's present owner."""
        check_guard(bundle, ticket)
        try:
            guard = await self._store.get(ticket.guard)
            record = await self._store.get(records.owner_path(bundle))
        except MetadataError as error:
            raise UnavailableError(f"the owner of {bundle} cannot be read: {error}") from error
        if guard is None or record is None or not _fits(ticket, guard, record):
            raise UnavailableError(f"the ticket for the bundle {bundle} is not good any more")

    async def take(self, bundle: BundleName, ticket: Ticket, own: Guard) -> RecordOutcome:
        """Replace the giver's record by ours.

        The giver's guard is read before its record, and gets another version in the same step.  So
        the record is still the giver's own, and a peer that removes the giver meanwhile has read
        the old version and deletes nothing of ours.
        """
        path = records.owner_path(bundle)
        try:
            for _ in range(_CONFLICTS_MAX):
                guard = await self._store.get(ticket.guard)
                record = await self._store.get(path)
                if guard is None or record is None or not _fits(ticket, guard, record):
                    break
                operations: list[Operation] = [
                    Check(own.path, ANY),
                    Set(ticket.guard, guard.value, guard.stat.version),
                    Delete(path, record.stat.version),
                    Create(path, self._ours, ephemeral=True),
                ]
                try:
                    await self._store.multi(operations)
                except VersionConflictError:
                    continue  # Another bundle of the same broker was given at the same time.
                return RecordOutcome.DONE
        except StoreUnavailableError:
            return RecordOutcome.NOT_DONE
        except NoRecordError:
            return RecordOutcome.NO_RECORD  # Our guard, or the giver's, is gone.
        except MetadataError:
            return RecordOutcome.IN_DOUBT
        return RecordOutcome.NOT_DONE

    # -- splitting a bundle

    async def split(
        self, bundle: BundleName, points: Sequence[int], guard: Guard
    ) -> list[BundleName] | None:
        """Replace the boundaries and our record, in one request under our guard.

        Return the parts, which the policies know since the same turn.  Return None if the bundle
        was not split, or may not have been.
        """
        namespace, range_ = namespace_of(bundle), range_of(bundle)
        path = records.local_policies_path(namespace)
        parts = [bundle_name(namespace, part) for part in parts_of(range_, points)]
        try:
            for _ in range(_CONFLICTS_MAX):
                record = await self._store.get(path)
                if record is None:
                    break
                fields = records.decode(dict[str, object], record.value)
                old = msgspec.convert(fields["bundles"], BundlesData)
                new = Bundles.parse(old.boundaries).split(range_, points)
                fields["bundles"] = BundlesData.from_bundles(new)
                ours = [Create(records.owner_path(p), self._ours, ephemeral=True) for p in parts]
                operations: list[Operation] = [
                    *delete_under_guard(guard, records.owner_path(bundle)),
                    Set(path, records.encode(fields), record.stat.version),
                    *ours,
                ]
                try:
                    await self._store.multi(operations)
                except VersionConflictError:
                    continue  # Another bundle of the namespace was split at the same time.
                self._policies.bundles_changed(namespace, new)
                return parts
        except (MetadataError, MalformedError, KeyError, ValueError) as error:
            # A record with bundles that are not valid raises one of the last three.
            self._log.warning("a bundle may not have been split", bundle=bundle, why=str(error))
        return None


def check_guard(bundle: BundleName, ticket: Ticket) -> None:
    """Raise UnavailableError if the ticket, which comes from the network, names no guard."""
    parent, _, name = ticket.guard.rpartition("/")
    if parent != records.GUARDS or name in ("", ".", "..") or not name.isprintable():
        raise UnavailableError(
            f"this broker could not take the bundle {bundle}: its ticket names no guard"
        )


def _fits(ticket: Ticket, guard: Record, record: Record) -> bool:
    """Return True if the record is the one of the ticket, and of the broker that gave that out."""
    theirs = record.stat.owner == guard.stat.owner
    return theirs and record.stat.created_txid == ticket.created_txid
