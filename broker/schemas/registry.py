"""The versions of the schemas of all topics: read, add, delete.

    registry = SchemaRegistry(store, ledgers, clock, versions_max=1000, schema_bytes_max=1 << 20)
    version = await registry.add(topic, schema, rules)
    latest = await registry.latest(topic)

A version is stored in three steps: write its ledger, close it, and name it in the record of the
topic by compare-and-swap.  If others have changed the record meanwhile, the ledger is deleted and
everything is decided again.  The write of the record also requires two ledgers to exist: the new
one, and that of the version before.  So a broker that was stopped for long cannot name a ledger
that was removed as an orphan.  Nor can it add to a record that has replaced the one it knows: the
removal of all versions deletes the last ledger together with the record.

An addition or a deletion that has begun continues if its caller stops waiting.  On one broker the
changes of a topic run one after the other, so a thousand producers with the same new schema cost
one version and no conflicts.

Reads are cached: records until they change, versions for as long as there is room.  A version never
changes, since its ledger is closed.  A version that the cached record does not have is looked for
in the newest record, because a message with it may have come through another broker.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from daybook.broker.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotFoundError,
    StorageFailedError,
    UnavailableError,
)
from daybook.broker.limits import SchemaLimits
from daybook.broker.protocol.schemas.compatibility import SchemaRules, Strategy, check, needed
from daybook.broker.protocol.schemas.schema import AVRO_BASED, KEY_VALUE, Schema, SchemaVersion
from daybook.broker.protocol.schemas.validation import Examined, examine
from daybook.broker.schemas.ledgers import SchemaLedgers
from daybook.broker.schemas.records import (
    ROOT,
    Locator,
    StoredVersion,
    decode_entry,
    decode_locator,
    encode_entry,
    first_locator,
    hash_of,
    index_entry,
    locator_path,
    schema_id,
)
from daybook.broker.to_the_end import to_the_end
from daybook.wire.clock import WallClock
from daybook.wire.metadata.paths import parent_of
from daybook.wire.metadata.store import (
    ANY,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.topics import TopicName, url_decode

_ATTEMPTS = 64  # Each lost race is another broker's success; so many in a row are a mistake.
_LOST = (VersionConflictError, RecordExistsError, NoRecordError)
_NODE_BYTES = 400  # one type of a parsed Avro schema
_VERSION_BYTES = 500  # a version, apart from its data
_LOCATOR_BYTES = 300  # one version in a record
_SMALL_BYTES = 4 << 10  # a schema of so many bytes is parsed in about a millisecond
# How often all other tasks run before a parse or a comparison, which may take as long as thousands
# of their steps.  A send needs several runs of tasks until it has its receipt.
_RUNS_OF_OTHERS = 10


@dataclass(slots=True, eq=False)
class _Known:
    """A record that was read, until the store says that it has changed."""

    locator: Locator | None = None
    bytes: int = 0
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class _Read:
    """A version that was read.  It is examined when it is first compared."""

    version: SchemaVersion
    examined: Examined | None
    bytes: int


class _Lock:
    """The changes of one topic, or the reads of one ledger, one after the other."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0


_Act: TypeAlias = Callable[[], Awaitable[int]]
ResultT = TypeVar("ResultT")


class SchemaRegistry:
    """One instance per broker.  `run` belongs in its nursery."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: SchemaLedgers,
        clock: WallClock,
        *,
        versions_max: int,
        schema_bytes_max: int,
        limits: SchemaLimits | None = None,
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._clock = clock
        self._versions_max = versions_max
        self._schema_bytes_max = schema_bytes_max
        self._limits = limits or SchemaLimits()
        self._known: dict[str, _Known] = {}  # by path
        self._known_bytes = 0
        self._read: OrderedDict[int, _Read] = OrderedDict()  # by ledger
        self._read_bytes = 0
        self._reads = trio.CapacityLimiter(self._limits.reads_at_once)
        self._locks: dict[str, _Lock] = {}
        self._turn = trio.Lock()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the changes that have begun, forever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    # -- reading

    async def latest(self, topic: TopicName) -> SchemaVersion | None:
        """Return the last version; None if the topic has no schema."""
        locator = await self._locator(topic)
        if locator is None or not locator.live:
            locator = await self._newest(topic)
        if locator is None or not locator.live:
            return None
        return (await self._version(topic, locator.live[-1])).version

    async def get(self, topic: TopicName, version: int) -> SchemaVersion | None:
        """Return a version; None if the topic has no such version, or has deleted it."""
        found = _live(await self._locator(topic), version)
        if found is None:
            found = _live(await self._newest(topic), version)
        return None if found is None else (await self._version(topic, found)).version

    async def versions(self, topic: TopicName) -> list[SchemaVersion]:
        """Return all versions since the last deletion, ascending."""
        locator = await self._newest(topic)
        live = [] if locator is None else locator.live
        return [(await self._version(topic, each)).version for each in live]

    async def locator(self, topic: TopicName) -> Locator | None:
        """Return the record of the topic, None if it never had a schema."""
        return await self._newest(topic)

    async def has_schema(self, topic: TopicName) -> bool:
        locator = await self._locator(topic)
        return locator is not None and bool(locator.live)

    async def find(self, topic: TopicName, schema: Schema) -> int | None:
        """Return the version that is this schema; None if there is none."""
        self._check_size(schema)
        locator = await self._newest(topic)
        same = None if locator is None else await self._same_text(topic, locator, schema)
        if locator is None or same is not None:
            return same
        return await self._same(topic, locator, await self._examine(schema))

    async def check(self, topic: TopicName, schema: Schema, strategy: Strategy) -> None:
        """Raise IncompatibleSchemaError if the schema may not follow those of the topic."""
        self._check_size(schema)
        examined = await self._examine(schema)
        locator = await self._locator(topic)
        if locator is not None:
            await self._check(topic, locator, examined, strategy)

    # -- adding

    async def add(self, topic: TopicName, schema: Schema, rules: SchemaRules) -> int:
        """Return the version that is this schema; add it if the topic has none.

        Raise InvalidSchemaError, IncompatibleSchemaError, UnavailableError.
        """
        self._check_size(schema)
        locator = await self._locator(topic)
        same = None if locator is None else await self._same_text(topic, locator, schema)
        if same is not None:
            return same
        examined = await self._examine(schema)
        same = None if locator is None else await self._same(topic, locator, examined)
        if same is not None:
            return same
        return await self._change(topic, lambda: self._add(topic, examined, rules))

    async def _add(self, topic: TopicName, examined: Examined, rules: SchemaRules) -> int:
        for _ in range(_ATTEMPTS):
            record = await self._newest_record(topic)
            locator = None if record is None else decode_locator(record.value, topic.full)
            if locator is not None:
                same = await self._same(topic, locator, examined)
                if same is not None:
                    return same
            if not rules.may_add:
                raise IncompatibleSchemaError(
                    f"{topic} does not have this schema, and its policies let only administrators"
                    " add one (`daybook schemas upload`)"
                )
            if locator is not None:
                self._check_room(topic, locator)
                await self._check(topic, locator, examined, rules.strategy)
            version = await self._store_version(topic, examined.schema, record, locator)
            if version is not None:
                return version
        raise _too_many_changes(topic)

    def _check_size(self, schema: Schema) -> None:
        if len(schema.data) > self._schema_bytes_max:
            raise InvalidSchemaError(
                f"the schema has {len(schema.data)} bytes; a schema has at most"
                f" {self._schema_bytes_max} (schema_bytes_max)"
            )

    async def _examine(self, schema: Schema) -> Examined:
        if len(schema.data) <= _SMALL_BYTES:
            return examine(schema)
        return await self._in_turn(partial(examine, schema))

    async def _in_turn(self, work: Callable[[], ResultT]) -> ResultT:
        """Do work that takes the processor for long, after other tasks have had their runs."""
        async with self._turn:
            for _ in range(_RUNS_OF_OTHERS):
                await trio.lowlevel.checkpoint()
            return work()

    def _check_room(self, topic: TopicName, locator: Locator) -> None:
        if len(locator.all) >= self._versions_max:
            raise IncompatibleSchemaError(
                f"{topic} has {len(locator.all)} versions of its schema, which is the limit"
                " (schema_versions_max): use one of them, or remove all of them with `daybook"
                " schemas delete --force`"
            )

    async def _same_text(self, topic: TopicName, locator: Locator, schema: Schema) -> int | None:
        """Return the first version that has the same text; None if there is none."""
        if schema.type == KEY_VALUE:  # The data of a pair do not have the types of its parts.
            return None
        wanted = hash_of(schema)
        for each in (stored for stored in locator.live if stored.hash == wanted):
            if (await self._version(topic, each)).version.schema.type == schema.type:
                return each.version
        return None

    async def _same(self, topic: TopicName, locator: Locator, examined: Examined) -> int | None:
        """Return the first version that is the same schema; None if there is none."""
        schema = examined.schema
        same = await self._same_text(topic, locator, schema)
        if same is not None:
            return same
        wanted = hash_of(schema)
        same_data = [each for each in locator.live if each.hash == wanted]
        # Avro schemas may differ in their text, and be the same.
        for each in locator.live if schema.type in AVRO_BASED else same_data:
            if (await self._version(topic, each)).version.schema.type == schema.type:
                with suppress(IncompatibleSchemaError):  # It is not valid.
                    if (await self._examined(topic, each)).identity == examined.identity:
                        return each.version
        return None

    async def _check(
        self, topic: TopicName, locator: Locator, examined: Examined, strategy: Strategy
    ) -> None:
        live = {each.version: each for each in locator.live}
        for number in needed(strategy, list(live)):
            old = await self._examined(topic, live[number])
            if old.identity == examined.identity:
                continue  # This is the schema of most consumers: it needs no turn.
            await self._in_turn(partial(check, examined, [old], strategy))

    async def _store_version(
        self,
        topic: TopicName,
        schema: Schema | None,
        record: Record | None,
        locator: Locator | None,
    ) -> int | None:
        """Store a version behind those of the record; None if the record has changed since."""
        number = 0 if locator is None else locator.last.version + 1
        before = [] if locator is None else locator.index
        entry = encode_entry(schema_id(topic), schema, self._clock.now_ms(), before)
        if record is None:
            await self._make_parents(topic)
        ledger_id = await self._ledgers.write(topic, entry)
        added = index_entry(number, ledger_id, 0, hash_of(schema))
        write: list[Operation] = [Check(self._ledgers.path(ledger_id), ANY)]
        if record is None or locator is None:
            write.append(Create(locator_path(topic), first_locator(added)))
        else:
            write.append(Check(self._ledgers.path(locator.last.ledger_id), ANY))
            value = locator.with_version(added)
            write.append(Set(locator_path(topic), value, record.stat.version))
        if await self._write(topic, write, ledger_id):
            return number
        await self._ledgers.delete(topic, ledger_id)
        if locator is not None:
            await self._check_last(topic, locator)
        return None

    async def _check_last(self, topic: TopicName, locator: Locator) -> None:
        """Raise StorageFailedError if a record is in force whose last ledger is lost."""
        ledger = await self._newest_at(topic, self._ledgers.path(locator.last.ledger_id))
        newest = await self._newest(topic) if ledger is None else None
        if newest is not None and newest.last == locator.last:
            raise StorageFailedError(
                f"the ledger of the last version of the schema of {topic} is lost, so no version"
                " can be added: remove all versions with `daybook schemas delete --force`"
            )

    async def _write(self, topic: TopicName, write: list[Operation], ledger_id: int) -> bool:
        """Carry out the write; return False if it can never be carried out."""
        doubt: OutcomeUnknownError | None = None
        for _ in range(_ATTEMPTS):
            try:
                await self._store.multi(write)
            except _LOST:
                if doubt is None:
                    return False
                # An earlier attempt may have been carried out: the record tells.
                locator = await self._newest(topic)
                return locator is not None and any(
                    each.ledger_id == ledger_id for each in locator.all
                )
            except OutcomeUnknownError as error:
                doubt = error
            except MetadataError as error:
                raise UnavailableError(
                    f"the schema of {topic} may not have been changed: {doubt or error}"
                ) from error
            else:
                self._forget(locator_path(topic))
                return True
        raise UnavailableError(f"the schema of {topic} may not have been changed: {doubt}")

    async def _make_parents(self, topic: TopicName) -> None:
        try:
            await self._store.create(parent_of(locator_path(topic)), b"", make_parents=True)
        except RecordExistsError:
            pass
        except MetadataError as error:
            raise UnavailableError(
                f"the schema of {topic} cannot be stored now: {error}"
            ) from error

    # -- deleting

    async def delete(self, topic: TopicName) -> int:
        """Add a deletion: the topic has no schema from there on.  Return its version.

        Raise NotFoundError if the topic never had a schema.
        """
        return await self._change(topic, lambda: self._delete(topic))

    async def _delete(self, topic: TopicName) -> int:
        for _ in range(_ATTEMPTS):
            record = await self._newest_record(topic)
            if record is None:
                raise NotFoundError(f"{topic} has no schema")
            locator = decode_locator(record.value, topic.full)
            if not locator.live:
                return locator.last.version  # It is deleted already.
            version = await self._store_version(topic, None, record, locator)
            if version is not None:
                return version
        raise _too_many_changes(topic)

    async def delete_all(self, topic: TopicName) -> int:
        """Delete all versions and their ledgers.  Return the last version, -1 if there was none."""
        return await self._change(topic, lambda: self._delete_all(topic))

    async def _delete_all(self, topic: TopicName) -> int:
        path = locator_path(topic)
        doomed: tuple[Record, Locator] | None = None
        for _ in range(_ATTEMPTS):
            record = await self._newest_record(topic)
            if record is None or (doomed and not _same_life(record, doomed[0])):
                break  # An earlier attempt of ours was carried out, or somebody else was first.
            locator = decode_locator(record.value, topic.full)
            doomed = record, locator
            # A broker that adds a version now requires the last ledger to exist, and fails.
            write: list[Operation] = [
                Delete(path, record.stat.version),
                Delete(self._ledgers.path(locator.last.ledger_id), ANY),
            ]
            try:
                await self._store.multi(write)
            except (VersionConflictError, OutcomeUnknownError):
                continue
            except NoRecordError:
                # Either the record is gone, or its last ledger was lost before.
                await self._delete_alone(topic, record)
            except MetadataError as error:
                raise UnavailableError(
                    f"the schemas of {topic} cannot be deleted now: {error}"
                ) from error
            break
        else:
            raise _too_many_changes(topic)
        self._forget(path)
        if doomed is None:
            return -1
        for each in doomed[1].all:
            await self._ledgers.delete(topic, each.ledger_id)
        return doomed[1].last.version

    async def delete_namespace(self, namespace: str) -> None:
        """Delete the schemas of all topics of a namespace."""
        path = f"{ROOT}/{namespace}"
        try:
            await self._store.sync(path)
            names = await self._store.get_children(path)
            for name in names or ():
                local = url_decode(name)
                await self.delete_all(TopicName.parse(f"persistent://{namespace}/{local}"))
            if names is not None:
                await self._store.delete(path, ANY)
        except (NoRecordError, NotEmptyError):
            pass  # Somebody else deletes it, or adds a schema right now.
        except MetadataError as error:
            raise UnavailableError(
                f"the schemas of {namespace} may not have been deleted: {error}; try again"
            ) from error

    async def _delete_alone(self, topic: TopicName, record: Record) -> None:
        try:
            await self._store.delete(locator_path(topic), record.stat.version)
        except NoRecordError:
            pass
        except MetadataError as error:
            raise UnavailableError(
                f"the schemas of {topic} may not have been deleted: {error}; try again"
            ) from error

    # -- changes, one after the other

    async def _change(self, topic: TopicName, act: _Act) -> int:
        if self._nursery is None:
            raise UnavailableError("this broker is stopping: look the topic up again")
        path = locator_path(topic)

        async def alone() -> int:
            async with self._alone(path):
                return await act()

        ended = UnavailableError(
            f"the broker stopped while the schema of {topic} was changed, so the outcome is"
            " unknown: try again"
        )
        return await to_the_end(self._nursery.start_soon, alone, over=lambda: None, ended=ended)()

    @asynccontextmanager
    async def _alone(self, path: str) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(path, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[path]

    # -- records

    async def _locator(self, topic: TopicName) -> Locator | None:
        """Return the record of the topic, from the cache if it has not changed since."""
        path = locator_path(topic)
        known = self._known.get(path)
        if known is not None and (known.fresh or not self._in_contact):
            return known.locator
        fresh = _Known()

        def touched() -> None:
            fresh.fresh = False

        try:
            # Only a record that exists gets a watch: clients can ask for any topic.
            record = await self._store.get(path, None if known is None else touched)
            if record is not None and known is None and self._has_room(record):
                record = await self._store.get(path, touched)
                known = fresh
        except StoreUnavailableError as error:
            if known is None or known is fresh:
                raise UnavailableError(
                    f"the schema of {topic} cannot be read now: {error}"
                ) from error
            return known.locator
        self._forget(path)
        if record is None:
            return None
        fresh.locator = decode_locator(record.value, topic.full)
        if known is not None and self._has_room(record):
            fresh.bytes = _size(fresh.locator)
            self._known[path] = fresh
            self._known_bytes += fresh.bytes
        return fresh.locator

    def _has_room(self, record: Record) -> bool:
        return self._known_bytes + 6 * len(record.value) < self._limits.locators_bytes_max

    def _forget(self, path: str) -> None:
        known = self._known.pop(path, None)
        if known is not None:
            self._known_bytes -= known.bytes

    async def _newest(self, topic: TopicName) -> Locator | None:
        record = await self._newest_record(topic)
        return None if record is None else decode_locator(record.value, topic.full)

    async def _newest_record(self, topic: TopicName) -> Record | None:
        """Return the record with everything that was written before this call."""
        return await self._newest_at(topic, locator_path(topic))

    async def _newest_at(self, topic: TopicName, path: str) -> Record | None:
        try:
            return await self._store.get_newest(path)
        except MetadataError as error:
            raise UnavailableError(f"the schema of {topic} cannot be read now: {error}") from error

    @property
    def _in_contact(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    # -- versions

    async def _version(self, topic: TopicName, stored: StoredVersion) -> _Read:
        found = self._read.get(stored.ledger_id)
        if found is None:
            # Tasks that want the same version wait for the first of them, which reads it.
            async with self._alone(self._ledgers.path(stored.ledger_id)), self._reads:
                found = self._read.get(stored.ledger_id)
                if found is None:
                    data = await self._ledgers.read(topic, stored)
                    version = decode_entry(data, stored.version, topic.full)
                    size = len(version.schema.data) + _VERSION_BYTES
                    return self._keep(stored, _Read(version, None, size))
        self._read.move_to_end(stored.ledger_id)
        return found

    async def _examined(self, topic: TopicName, stored: StoredVersion) -> Examined:
        read = await self._version(topic, stored)
        if read.examined is not None:
            return read.examined
        # Tasks that compare with the same version wait for the first of them, which parses it.
        async with self._alone(f"{self._ledgers.path(stored.ledger_id)} parsed"):
            return await self._examined_alone(topic, stored)

    async def _examined_alone(self, topic: TopicName, stored: StoredVersion) -> Examined:
        read = await self._version(topic, stored)
        if read.examined is not None:
            return read.examined
        await trio.lowlevel.checkpoint()  # A topic may have many small versions.
        try:
            examined = await self._examine(read.version.schema)
        except InvalidSchemaError as error:
            raise IncompatibleSchemaError(
                f"version {stored.version} of the schema of {topic} is not valid, so nothing can be"
                f" compared with it: {error}"
            ) from error
        nodes = 0 if examined.avro is None else examined.avro.nodes
        self._keep(stored, _Read(read.version, examined, read.bytes + nodes * _NODE_BYTES))
        return examined

    def _keep(self, stored: StoredVersion, read: _Read) -> _Read:
        before = self._read.pop(stored.ledger_id, None)
        self._read_bytes += read.bytes - (0 if before is None else before.bytes)
        self._read[stored.ledger_id] = read
        while self._read_bytes > self._limits.cache_bytes_max:
            _, dropped = self._read.popitem(last=False)
            self._read_bytes -= dropped.bytes
        return read


def _same_life(record: Record, other: Record) -> bool:
    """Return True if the record was not deleted and created again between the two reads."""
    return record.stat.created_txid == other.stat.created_txid


def _live(locator: Locator | None, version: int) -> StoredVersion | None:
    live: Sequence[StoredVersion] = () if locator is None else locator.live
    return next((each for each in live if each.version == version), None)


def _size(locator: Locator) -> int:
    return _LOCATOR_BYTES * (1 + len(locator.all))


def _too_many_changes(topic: TopicName) -> UnavailableError:
    return UnavailableError(
        f"the schema of {topic} was not changed: others changed it {_ATTEMPTS} times meanwhile"
    )
