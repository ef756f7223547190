"""The registered brokers, the bundles that each owns, and the removal of a dead broker.

A broker joins with one multi, which writes its guard and its registration.  Guard names are never
used twice.  So a multi that deletes a guard can only succeed while the records that were read with
it still belong to the same session.  This makes the removal of a dead broker's records safe: a
plain delete could hit the records of its successor, whose versions start at 0 again.

A broker that is being removed may be alive after all, and release a record itself meanwhile.  So
every release gives the guard another version in the same step (`delete_under_guard`).  A remover
that has read the records before then deletes nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio
from msgspec import UNSET

from daybook.bookie.registry.instance import PATH, InstanceBinding, read_binding
from daybook.broker.errors import CannotJoinError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import BrokerRecord, GuardRecord, OwnerRecord
from daybook.broker.protocol.bundles import BundleName, bundle_name
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import (
    ANY,
    REQUEST_BYTES_MAX,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    Set,
    Stat,
    StoreUnavailableError,
    VersionConflictError,
    Watch,
    request_bytes,
)

_RETRY_S = 0.1
_READS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of one broker process, from its start to its end."""

    broker_id: str  # host:port, also the name of its registration
    incarnation: str  # random, another one after each start
    service_url: str | None
    http_url: str | None
    service_url_tls: str | None = None
    http_url_tls: str | None = None

    @property
    def url(self) -> str:
        """Return the URL of the service port, for logs: with TLS if there is no other."""
        return self.service_url or self.service_url_tls or ""

    @property
    def call_url(self) -> str | None:
        """Return the URL of the admin REST for other brokers: with TLS if there is no other."""
        return self.http_url or self.http_url_tls

    @property
    def service_urls(self) -> tuple[str, ...]:
        return tuple(url for url in (self.service_url, self.service_url_tls) if url)

    @property
    def owner_record(self) -> OwnerRecord:
        return OwnerRecord(self.service_url, self.http_url, self.service_url_tls, self.http_url_tls)


@dataclass(frozen=True, slots=True)
class Member:
    """A registered broker."""

    broker_id: str
    session: int
    record: BrokerRecord


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of a broker in one session; `value` is the content of its record."""

    path: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Owned:
    """A bundle that a broker owns."""

    bundle: BundleName
    session: int
    record: OwnerRecord
    modified_ms: int  # when the record was written, by the clock of the metadata store


# -- reading


async def members(store: MetadataStore, watch: Watch | None = None) -> list[Member]:
    """Return the registered brokers, by id.  The watch fires when one comes or goes."""
    names = await store.get_children(records.BROKERS, watch) or []
    found = await _read_all(store, [f"{records.BROKERS}/{name}" for name in names])
    result: list[Member] = []
    for name, record in zip(names, found, strict=True):
        if record is not None:
            try:
                value = records.decode(BrokerRecord, record.value)
            except MalformedError:
                continue  # Clients could not be redirected to it.
            result.append(Member(name, record.stat.owner, value))
    return result


async def owners(store: MetadataStore) -> list[Owned]:
    """Return all owned bundles, by name."""
    bundles: list[BundleName] = []
    for tenant in await store.get_children(records.OWNERS) or []:
        for namespace in await store.get_children(f"{records.OWNERS}/{tenant}") or []:
            bundles += await _owned_in(store, f"{tenant}/{namespace}")
    return await _read_owners(store, bundles)


async def owners_in(store: MetadataStore, namespace: str) -> list[Owned]:
    """Return the owned bundles of a namespace, by name."""
    return await _read_owners(store, await _owned_in(store, namespace))


async def _owned_in(store: MetadataStore, namespace: str) -> list[BundleName]:
    ranges = await store.get_children(f"{records.OWNERS}/{namespace}") or []
    return [bundle_name(namespace, range_) for range_ in ranges]


async def _read_owners(store: MetadataStore, bundles: Sequence[BundleName]) -> list[Owned]:
    found = await _read_all(store, [records.owner_path(bundle) for bundle in bundles])
    result: list[Owned] = []
    for bundle, record in zip(bundles, found, strict=True):
        if record is not None:
            stat, owner = record.stat, owner_record(record)
            result.append(Owned(bundle, stat.owner, owner, stat.modified_ms))
    return result


def owner_record(record: Record) -> OwnerRecord:
    """Return the owner that a record names.

    A record that cannot be parsed names an owner without an address.
    """
    try:
        return records.decode(OwnerRecord, record.value)
    except MalformedError:
        return OwnerRecord(None)


async def _read_all(store: MetadataStore, paths: Sequence[str]) -> list[Record | None]:
    """Return the records at `paths`, reading several at a time."""
    found: list[Record | None] = [None] * len(paths)
    failed: list[MetadataError] = []

    async def read(start: int) -> None:
        try:
            for index in range(start, len(paths), _READS_AT_ONCE):
                found[index] = await store.get(paths[index])
        except MetadataError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        for start in range(min(_READS_AT_ONCE, len(paths))):
            nursery.start_soon(read, start)
    if failed:
        raise failed[0]
    return found


# -- joining

DeathCheck = Callable[[Member], Awaitable[bool]]
"""Returns True if the process that registered is certainly dead."""


async def check_others(store: MetadataStore, bound: InstanceBinding) -> None:
    """Raise CannotJoinError if a registered broker uses the ledgers of another instance.

    Pulsar's brokers have no guards, and older brokers of ours do not announce their instance.  They
    are not checked.
    """
    names = await store.get_children(records.GUARDS) or []
    for record in await _read_all(store, [f"{records.GUARDS}/{name}" for name in names]):
        if record is None:
            continue
        try:
            guard = records.decode(GuardRecord, record.value)
        except MalformedError:
            continue
        if isinstance(guard.instance, str) and guard.instance != bound.instance_id:
            raise CannotJoinError(
                f"the broker {guard.broker_id} keeps topics in the instance {guard.instance}, and"
                f" this one in {bound.instance_id}, on one ZooKeeper: stop the one whose"
                " `ledgers_root` is wrong (`daybook cluster show`)"
            )


async def join(
    store: MetadataStore,
    identity: Identity,
    record: BrokerRecord,
    *,
    formats: Sequence[str],
    term: int,
    wanted: Callable[[], bool],
    is_dead: DeathCheck,
    bound: InstanceBinding | None = None,
) -> Guard | None:
    """Write guard and registration and return the guard; return None once not `wanted`.

    With `bound`, join only while the metadata store still names that instance, and raise
    CannotJoinError otherwise.

    A registration under our id in another session was left by an earlier start of this broker.  It
    is removed if `is_dead` confirms; otherwise its session has to end.  A registration in our own
    session, with a guard that this attempt has not written, was left by an earlier attempt that was
    no longer wanted.  It is removed, too.  So at most one attempt of a broker may be under way.
    """
    guard = GuardRecord(identity.broker_id, identity.incarnation, formats=list(formats) or UNSET)
    checks: list[Operation] = []
    if bound is not None:
        guard.instance = bound.instance_id
        checks = [Check(PATH, bound.version)]
    value = records.encode(guard)
    registration = f"{records.BROKERS}/{identity.broker_id}"
    tried: list[str] = []
    while wanted():
        # Each attempt has a guard name of its own, so an attempt in doubt can be told apart.
        path = f"{records.GUARDS}/{_guard_prefix(identity)}{term}-{len(tried)}"
        tried.append(path)
        try:
            await ensure(store, records.GUARDS)
            await ensure(store, records.BROKERS)
            await store.multi(
                [
                    *checks,
                    Create(path, value, ephemeral=True),
                    Create(registration, records.encode(record), ephemeral=True),
                ]
            )
        except RecordExistsError:
            pass  # Another registration is in the way, or an attempt without an answer succeeded.
        except (VersionConflictError, NoRecordError):
            if bound is None:
                raise
            checks = [Check(PATH, (await _check_binding(store, bound)).version)]
        except (OutcomeUnknownError, StoreUnavailableError):
            await trio.sleep(_RETRY_S)
        else:
            return Guard(path, value)
        found = await _own_guard(store, tried)
        if found is not None:
            return Guard(found, value)
        await _clear_registration(store, registration, is_dead)
    return None


async def _check_binding(store: MetadataStore, bound: InstanceBinding) -> InstanceBinding:
    """Return the binding as it is now.  Raise CannotJoinError if it names another instance."""
    while True:
        try:
            found = await read_binding(store)
        except StoreUnavailableError:
            await trio.sleep(_RETRY_S)
            continue
        if found is None or found.instance_id != bound.instance_id:
            now = "nothing" if found is None else found.instance_id
            raise CannotJoinError(
                f"{PATH} now names {now}, but this broker was started for the instance"
                f" {bound.instance_id}: the topics were bound to other ledgers. Restart it with"
                " the settings of the other brokers (`daybook cluster show`)"
            )
        return found


def _guard_prefix(identity: Identity) -> str:
    return f"{identity.broker_id}-{identity.incarnation}-"


async def _own_guard(store: MetadataStore, tried: list[str]) -> str | None:
    """Return the guard that an attempt without an answer has left in this session, if any."""
    for path in tried:
        try:
            record = await store.get(path)
        except StoreUnavailableError:
            return None
        if record is not None and record.stat.owner == store.session_id:
            return path
    return None


async def _clear_registration(store: MetadataStore, registration: str, is_dead: DeathCheck) -> None:
    """Remove a registration that is in our way, if the broker that wrote it is dead."""
    try:
        record = await store.get(registration)
        if record is None:
            return
        broker = records.decode(BrokerRecord, record.value)
        member = Member(registration.rpartition("/")[2], record.stat.owner, broker)
        own_session = member.session == store.session_id
        if own_session and not await _guards(store, member.session):
            await store.delete(registration, record.stat.version)  # Its guard was deleted by hand.
            return
        if (own_session or await is_dead(member)) and await remove(store, member):
            return
    except (MetadataError, MalformedError):
        pass  # `join` looks again in a moment.
    await trio.sleep(_RETRY_S)


async def ensure(store: MetadataStore, path: str, value: bytes = b"") -> None:
    """Create a record at `path` with this value, unless there is one already."""
    try:
        if await store.get(path) is None:
            await store.create(path, value, make_parents=True)
    except RecordExistsError:
        return


# -- removing


def delete_under_guard(guard: Guard, path: str) -> list[Operation]:
    """Return the operations that delete a record of ours while our guard exists.

    Without the guard, the record may belong to another broker by now.
    """
    return [Set(guard.path, guard.value, ANY), Delete(path, ANY)]


async def withdraw(store: MetadataStore, broker_id: str, guard: Guard) -> None:
    """Delete our registration, and our leader record if we lead; keep the bundles."""
    for path in (records.LEADER, f"{records.BROKERS}/{broker_id}"):
        record = await store.get(path)
        if record is not None and record.stat.owner == store.session_id:
            with suppress(NoRecordError):
                await store.multi(delete_under_guard(guard, path))


async def remove(store: MetadataStore, member: Member) -> bool:
    """Delete the records of a dead broker, its guard last.  Return False if that failed.

    Return True, too, if another broker or the end of the session was faster.

    Records that do not fit into one request are deleted in several steps.  Each step names the
    version that the guard had before the records were read, and all but the last give the guard
    another version.  So a remover that has read the records earlier, and would delete those of a
    successor, fails.
    """
    session = member.session
    while True:
        # The guards are read first: their versions prove that the records below are the session's.
        guards = await _guards(store, session)
        if not guards:
            return True
        leader = await store.get(records.LEADER)
        registration = f"{records.BROKERS}/{member.broker_id}"
        registered = await store.get(registration)
        paths = [records.owner_path(o.bundle) for o in await owners(store) if o.session == session]
        paths += [
            path
            for path, record in ((records.LEADER, leader), (registration, registered))
            if record is not None and record.stat.owner == session
        ]
        ends: list[Operation] = [Delete(path, stat.version) for path, _, stat in guards]
        touches = [Set(path, value, stat.version) for path, value, stat in guards]
        first = _first_step(paths, touches)
        last = len(first) == len(paths)
        assert first or not paths  # each step makes progress
        try:
            await store.multi([*(ends if last else touches), *first])
            if not last:
                continue
        except (NoRecordError, VersionConflictError):
            continue  # The records have changed since they were read: read them again.
        except MetadataError:
            return False
        return True


def _first_step(paths: Sequence[str], others: Sequence[Operation]) -> list[Operation]:
    """Return as many deletions as fit into one request beside `others`."""
    size, step = request_bytes(others), list[Operation]()
    for path in paths:
        delete = Delete(path, ANY)
        size += request_bytes([delete])
        if size > REQUEST_BYTES_MAX:
            break
        step.append(delete)
    return step


async def _guards(store: MetadataStore, session: int) -> list[tuple[str, bytes, Stat]]:
    """Return the guards of a session: their paths, values and stats."""
    names = await store.get_children(records.GUARDS) or []
    paths = [f"{records.GUARDS}/{name}" for name in names]
    found = await _read_all(store, paths)
    return [
        (path, record.value, record.stat)
        for path, record in zip(paths, found, strict=True)
        if record is not None and record.stat.owner == session
    ]
