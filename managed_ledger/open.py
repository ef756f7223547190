"""Open, create and delete logs.

Opening takes a log over from its former owner, whether that is alive or not:

1. read the list and its version
2. check that the last two ledgers belong to the log; recover, which fences, those of them that are
   not closed (a rollover leaves two at most)
3. create a new ledger
4. put it on the list by compare-and-swap with the version of step 1
5. check that the cursors' ledgers belong to them, and recover the cursors, which fences these
   ledgers; a cursor whose ledger has records that Pulsar misreads gets a new ledger

Step 1 reads behind a sync, which logs that are opened together share.  Step 5 needs none: every
change of a cursor names the version of the list, and a session that has written the list sees what
was written before that (`LedgerList.read_record`).

Nothing is served before step 4, and cursors are not even read before it.  A conflict in step 4
means that another host opens the log, too.  The result is FencedError, and the caller finds out
who should own the log before it tries again.

If half of the room of a list is used, the write that puts the new ledger on the list also trims it.
The ledgers that may go depend on the positions of the cursors, which are not known before the log
is taken over.  Until then its former owner may create a cursor, or set one back, in front of what
the new owner would drop.  No condition on the version of the list, or on records that were read,
excludes that: a change in a cursor's ledger moves no version, and a new cursor has no version that
could be named.  So step 4 has two writes then:

4a. claim the list: write the lengths of step 2, and the id of the new ledger as a property, by
    compare-and-swap with the version of step 1.  From here on the log belongs to this host: every
    write of the former owner to a cursor's record checks the version of the list, and fails
4b. read the positions of the cursors, which fences their ledgers: nothing can change them any more
4c. by compare-and-swap with the version of 4a: put the new ledger on the list, remove the claim,
    and drop the ledgers that neither a cursor nor retention needs

A broker that reads the list between 4a and 4c may take the log over as usual, and then 4c fails.
Without the id in it, the claims of two hosts could be the same value.

A log to which nothing was appended since its last opening is opened without a new ledger: step 3 is
left out, and step 4 writes a random number of this opening instead of the id of a ledger.  From
then on the log is idle (`protocol.log`): it gets a ledger with its first append.  So a topic that
is only read costs no ledger, and nothing has to be fenced when it changes hands again.  Its list
keeps one ledger, also if that is empty, because positions need one.
"""

import logging
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import TypeVar

import trio

from daybook.bookie.errors import NoSuchLedgerError
from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.cursor_ledger import stored_position
from daybook.managed_ledger.entry_cache import EntryCache
from daybook.managed_ledger.errors import FencedError, LogCorruptError, NoSuchLogError
from daybook.managed_ledger.ledger_list import (
    LedgerList,
    drop,
    put_on_list,
    sealed_ledger,
    set_sealed,
    stored_offset,
    unrecorded,
)
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.log_tasks import LogTasks
from daybook.managed_ledger.offsets import last_offset_of, stated_offset
from daybook.managed_ledger.orphans import RemoveOther, remove_orphans
from daybook.managed_ledger.protocol.orphans import Suspects
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.protocol.trim import SealedLedger, trimmable
from daybook.managed_ledger.records import (
    INSTANCE,
    OPENING,
    OWNER,
    LedgerInfo,
    LedgerOwner,
    clear_property,
    get_property,
    log_path,
    parse,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.managed_ledger.sinks.progress import held_by_sinks
from daybook.managed_ledger.traffic import WriteLatencies
from daybook.wire.clock import WallClock
from daybook.wire.metadata.paths import parent_of
from daybook.wire.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    SessionState,
    StoreUnavailableError,
    VersionConflictError,
)

K = TypeVar("K", int, str)
T = TypeVar("T")
RECOVERED_LEDGERS = 2  # A rollover leaves at most two ledgers of the list unclosed.
_CURSORS_AT_ONCE = 32
_READS_AT_ONCE = 8
_OWNER_BITS = 63
_NOT_ANSWERED = (OutcomeUnknownError, StoreUnavailableError)
_log = logging.getLogger(__name__)


def ignore_step(_step: str) -> None:
    """Tell nobody."""


class ManagedLedgers:
    """The logs of one host.  See `open_managed_ledgers`."""

    def __init__(self, context: LogContext) -> None:
        self._context = context  # for the next log to be opened; `bind` replaces it
        self._open_logs: dict[int, ManagedLedger] = {}
        self._numbers = count()
        self._suspects = Suspects()

    @property
    def in_contact(self) -> bool:
        """True while the metadata store answers; else another host may have taken the logs over."""
        return self._context.store.session_state is SessionState.CONNECTED

    @property
    def cache(self) -> EntryCache:
        return self._context.cache

    @property
    def write_latencies(self) -> WriteLatencies:
        return self._context.write_latencies

    @property
    def tree(self) -> str | None:
        """The id of the tree of logs; None until `name_tree` has set it."""
        return self._context.tree

    def bind(self, instance_id: str) -> None:
        """Set the INSTANCEID of the ledgers: lists that name another one are refused."""
        self._context = replace(self._context, instance=instance_id)

    def name_tree(self, tree: str) -> None:
        """Set the id of the tree of logs: ledgers that are created from now on name it."""
        self._context = replace(self._context, tree=tree)

    async def exists(self, name: str) -> bool:
        """Return True if the log exists.  A True may be outdated, a False is not."""
        context, path = self._context, log_path(name)
        if await context.retry_read(lambda: context.store.get(path)) is not None:
            return True
        return await context.read_newest(path) is not None

    async def create(
        self,
        name: str,
        properties: Mapping[str, str] | None = None,
        *,
        condition: Check | None = None,
    ) -> bool:
        """Create an empty log; return False if there is one already.

        The `condition` is checked in the step that creates the log.  Raise VersionConflictError or
        NoRecordError if it does not hold; then there is no log of this call.
        """
        info = ManagedLedgerInfo()
        for key, value in sorted((properties or {}).items()):
            set_property(info, key, value)
        if self._context.instance is not None:
            set_property(info, INSTANCE, self._context.instance)
        path, content, in_doubt = log_path(name), info.SerializeToString(), False
        while True:
            try:
                await self._create_record(path, content, condition)
            except RecordExistsError:
                # It may be the record of an earlier attempt whose answer was lost.
                return in_doubt and await self._has(path, content)
            except (NoRecordError, VersionConflictError):
                if in_doubt and await self._has(path, content):
                    return True  # The condition held when an earlier attempt was carried out.
                raise
            except OutcomeUnknownError:
                in_doubt = True
                await self._context.pause()
            except StoreUnavailableError:
                await self._context.pause()
            else:
                return True

    async def _create_record(self, path: str, content: bytes, condition: Check | None) -> None:
        store = self._context.store
        if condition is None:
            await store.create(path, content, make_parents=True)
            return
        operations: list[Operation] = [condition, Create(path, content)]
        try:
            await store.multi(operations)
        except NoRecordError:
            # The record of the condition is missing, or this is the first log below its parent.
            with suppress(RecordExistsError):
                await store.create(parent_of(path), b"", make_parents=True)
            await store.multi(operations)

    async def _has(self, path: str, content: bytes) -> bool:
        found = await self._context.read_newest(path)
        return found is not None and found.value == content

    async def list(self, prefix: str) -> list[str]:
        """Return the names of the logs below `prefix`, e.g. `tenant/namespace/persistent`."""
        path = log_path(prefix)
        store = self._context.store
        return await self._context.retry_read(lambda: store.get_children(path)) or []

    async def open(
        self,
        name: str,
        config: LogConfig | None = None,
        *,
        create: bool = True,
        on_step: Callable[[str], None] = ignore_step,
    ) -> ManagedLedger:
        """Take the log over.  `on_step` is told in words what is done next.

        Raise NoSuchLogError, FencedError, LogCorruptError, or LedgerError and MetadataError if it
        does not work now.
        """
        opened: list[weakref.ref[ManagedLedger]] = []  # The tasks of a log do not keep it.
        bugs: list[Exception] = []

        def on_bug(bug: Exception) -> None:
            bugs.append(bug)
            for weak in opened:
                if (log := weak()) is not None:
                    log.failed(bug)
                else:
                    _log.error("%s had a bug at its end: please report it", name, exc_info=bug)

        # A log that has ended is forgotten at once: its topic and all that it has read go with it.
        number = next(self._numbers)
        forget = partial(self._open_logs.pop, number, None)
        tasks = LogTasks(self._context.nursery, on_bug, forget)
        try:
            on_step("reading its list of ledgers in ZooKeeper")
            record = await self._find_or_create(name, create=create)
            context = replace(self._context, tasks=tasks)
            log = await _take_over(name, context, config or LogConfig(), record, on_step)
            opened.append(weakref.ref(log))
            if bugs:  # Something that the log runs has failed before it was there.
                log.abandon()
                raise bugs[0]
        except BaseException:
            tasks.cancel()
            raise
        if not tasks.cancelled:
            self._open_logs[number] = log
        return log

    async def _find_or_create(self, name: str, *, create: bool) -> Record:
        """Return the newest list; an older one may name ledgers that were deleted since."""
        path = log_path(name)
        record = await self._context.read_newest(path)
        if record is None:
            if not create:
                raise NoSuchLogError(name)
            await self.create(name)
            record = await self._context.read_newest(path)
            if record is None:
                raise FencedError(f"{name} was deleted while it was being created")
        return record

    async def remove_orphans(
        self,
        *,
        age_s: float = 0.0,
        of_gone_logs: bool = False,
        remove_other: RemoveOther | None = None,
    ) -> Sequence[int]:
        """Remove ledgers that nothing names, and return their ids; see `orphans.remove_orphans`.

        Raise MetadataError.
        """
        return await remove_orphans(
            self._context,
            self._open_logs.values(),
            self._suspects,
            age_s=age_s,
            of_gone_logs=of_gone_logs,
            remove_other=remove_other,
        )

    def abandon(self) -> None:
        """Abandon all logs that are still open."""
        for log in list(self._open_logs.values()):
            log.abandon()

    async def delete(self, log: ManagedLedger) -> None:
        """Delete an open log with its cursors and ledgers.  The record is deleted first."""
        # The list is emptied first: a crash after that leaves orphans, and never a lost ledger.
        doomed = await log.clear()
        path, version = log.ledgers.path, log.ledgers.version
        while True:
            try:
                await self._context.store.delete(path, version)
                break
            except NoRecordError:  # An earlier request whose answer was lost has deleted it.
                break
            except VersionConflictError:
                raise FencedError(f"{log.name} was taken over while it was being deleted") from None
            except NotEmptyError:
                await self._delete_stray_cursors(log.name, version)
            except _NOT_ANSWERED:
                await self._context.pause()
        await self._context.delete_ledgers(doomed, log.ledgers.owner)

    async def _delete_stray_cursors(self, log_name: str, version: int) -> None:
        """Delete cursors that were not created completely, and so belong to no open log.

        Each deletion checks the version of the list: after a takeover the cursors may belong to
        the new owner.
        """
        context, path = self._context, log_path(log_name)
        for name in await context.read_newest_children(path):
            child = f"{path}/{name}"
            record = await context.read_newest(child)
            if record is None:
                continue
            operations: list[Operation] = [Check(path, version), Delete(child, record.stat.version)]
            with suppress(NoRecordError, VersionConflictError, *_NOT_ANSWERED):
                await context.store.multi(operations)
                with suppress(LogCorruptError):
                    info = parse(ManagedCursorInfo(), record.value, name)
                    if info.cursorsLedgerId >= 0:
                        owner = LedgerOwner(log_name, name)
                        await context.delete_ledgers([info.cursorsLedgerId], owner)


async def _take_over(
    name: str,
    context: LogContext,
    config: LogConfig,
    record: Record,
    on_step: Callable[[str], None],
) -> ManagedLedger:
    """Carry out steps 2 to 5."""
    path = log_path(name)
    info = parse(ManagedLedgerInfo(), record.value, path)
    _check_instance(context, path, info)  # before anything is fenced
    stat = record.stat
    ledgers = LedgerList(context, name, info, stat.version, created=stat.created_txid)
    on_step(f"recovering its last ledgers, of {len(ledgers.ids)}")
    next_offset = await recover_tail(context, ledgers)  # step 2
    assert len(ledgers.sealed) == len(ledgers.ids)
    if _may_be_idle(ledgers, config):
        log = await _take_idle(context, config, ledgers, next_offset, on_step)
    else:
        log = await _take_with_ledger(context, config, ledgers, next_offset, on_step)
    try:
        on_step("recovering its subscriptions from their ledgers")
        await _recover_cursors(log)  # step 5
    except BaseException:
        # Without this its writer would listen to the bookies for as long as the host lives.
        log.abandon()
        raise
    return log


async def _take_with_ledger(
    context: LogContext,
    config: LogConfig,
    ledgers: LedgerList,
    next_offset: int,
    on_step: Callable[[str], None],
) -> ManagedLedger:
    """Carry out steps 3 and 4."""
    name = ledgers.owner.log
    on_step("creating a ledger on the bookies")
    writer = await context.create_ledger(config.quorums, name)  # step 3
    learned = unrecorded(ledgers)  # the lengths that step 4 writes
    trimmed: list[int] = []

    async def update(add: Callable[[ManagedLedgerInfo], None]) -> None:
        # A log without ledgers has nothing to trim, however long its properties are.
        if ledgers.ids and Room(ledgers.bytes, config.list_bytes_max).alarming:
            await _claim(ledgers, learned, OPENING, writer.ledger_id, next_offset)
            # Only after the claim: until then the former owner may set a cursor back.
            held = await _for_each_cursor(
                ledgers,
                lambda cursor: stored_position(context, LedgerOwner(name, cursor), ledgers),
            )
            now_ms = context.clock.now_ms()
            positions = [*held.values(), *held_by_sinks(ledgers.info.properties)]
            trimmed[:] = trimmable(ledgers.sealed, positions, config.retention, now_ms)

        def change(info: ManagedLedgerInfo) -> None:
            _record_lengths(info, learned)
            clear_property(info, OPENING)
            clear_property(info, OWNER)
            drop(info, trimmed)
            add(info)

        await ledgers.take(change, next_offset)

    # Step 4: with this write the log belongs to this host.
    on_step("writing its list of ledgers to ZooKeeper")
    await put_on_list(context, ledgers, writer, update)
    assert ledgers.lists(writer.ledger_id)
    _delete_empty(context, ledgers, learned)
    if trimmed:
        context.tasks.start_soon(context.delete_ledgers, trimmed, ledgers.owner)
    return ManagedLedger(name, context, config, ledgers, writer, next_offset)


def _may_be_idle(ledgers: LedgerList, config: LogConfig) -> bool:
    """Return True if nothing was appended since the last opening, and the list has much room."""
    listed = zip(ledgers.info.ledgerInfo, ledgers.sealed, strict=True)
    if any(sealed.entries and not ledger.HasField("entries") for ledger, sealed in listed):
        return False  # The next append is probably near.
    return bool(ledgers.ids) and not Room(ledgers.bytes, config.list_bytes_max).alarming


async def _take_idle(
    context: LogContext,
    config: LogConfig,
    ledgers: LedgerList,
    next_offset: int,
    on_step: Callable[[str], None],
) -> ManagedLedger:
    """Carry out step 4 without a new ledger."""
    filled = [ledger.ledger_id for ledger in ledgers.sealed if ledger.entries]
    kept = filled[-1] if filled else ledgers.ids[-1]
    learned = [each for each in unrecorded(ledgers) if each.entries or each.ledger_id != kept]
    on_step("writing its list of ledgers to ZooKeeper")
    await _claim(ledgers, learned, OWNER, context.rng.getrandbits(_OWNER_BITS), next_offset)
    _delete_empty(context, ledgers, learned)
    return ManagedLedger(ledgers.owner.log, context, config, ledgers, None, next_offset)


def _delete_empty(
    context: LogContext, ledgers: LedgerList, learned: Sequence[SealedLedger]
) -> None:
    """Delete the empty ledgers, which step 4 took off the list.

    There may be thousands of ledgers to delete, so the opening waits for no deletion.
    """
    empty = [ledger.ledger_id for ledger in learned if not ledger.entries]
    if empty:
        context.delete_later(empty, ledgers.owner)


# -- the tail of the list


async def recover_tail(context: LogContext, ledgers: LedgerList) -> int:
    """Seal all ledgers of the list, in memory; return the next offset.

    The last two ledgers are recovered, which fences their writer, and so is every other ledger
    whose length the list does not state.  A listed ledger without metadata is an error, since the
    list promises its entries.

    Raise LogCorruptError, or LedgerError and MetadataError if it does not work now.
    """
    infos = list(ledgers.info.ledgerInfo)
    # All ledgers prove that they belong to the log before the first one is fenced.
    last = infos[-RECOVERED_LEDGERS:]
    unknown = [ledger.ledgerId for ledger in infos if not ledger.HasField("entries")]
    ids = sorted({*unknown, *(ledger.ledgerId for ledger in last)})
    unsealed = await _metadata_of(context, ledgers.owner, ids)
    for ledger in infos:
        stored = unsealed.get(ledger.ledgerId)
        if stored is not None:
            ledgers.seal(await _recover(context, ledger, stored))
        else:
            ledgers.seal(sealed_ledger(ledger, context.clock.now_ms()))
    # The list states an offset even if every entry was trimmed: offsets never start again.
    return max(
        stored_offset(ledgers.info, ledgers.path), await last_offset_of(context, ledgers) + 1
    )


async def _metadata_of(
    context: LogContext, owner: LedgerOwner, ledger_ids: Sequence[int]
) -> dict[int, StoredMetadata]:
    """Return the verified metadata of ledgers, or raise the first error."""
    return await _for_each(
        ledger_ids, lambda ledger_id: _verified_metadata(context, owner, ledger_id), _READS_AT_ONCE
    )


async def _for_each(
    items: Sequence[K], act: Callable[[K], Awaitable[T]], at_once: int
) -> dict[K, T]:
    """Return the result of `act` for each item, or raise the first error."""
    if len(items) == 1:  # the usual case of a load, and tasks would cost more than the rest
        return {items[0]: await act(items[0])}
    found: dict[K, T] = {}
    errors: list[Exception] = []
    limiter = trio.CapacityLimiter(at_once)

    async def run(item: K) -> None:
        async with limiter:
            if errors:
                return
            try:
                found[item] = await act(item)
            except Exception as error:
                errors.append(error)

    if items:
        async with trio.open_nursery() as nursery:
            for item in items:
                nursery.start_soon(run, item)
    if errors:
        raise errors[0]
    return found


async def _verified_metadata(
    context: LogContext, owner: LedgerOwner, ledger_id: int
) -> StoredMetadata:
    try:
        return await context.retry_read(lambda: context.verified_metadata(ledger_id, owner))
    except NoSuchLedgerError:
        raise _gone(ledger_id) from None


def _gone(ledger_id: int) -> LogCorruptError:
    return LogCorruptError(
        f"ledger {ledger_id} is on the list of its log, but the metadata store has no such ledger:"
        " it was probably deleted by hand, or ZooKeeper was restored from an old copy"
    )


async def _recover(context: LogContext, ledger: LedgerInfo, stored: StoredMetadata) -> SealedLedger:
    known = sealed_ledger(ledger, context.clock.now_ms())
    ledger_id = ledger.ledgerId
    try:
        reader = await context.retry_read(
            lambda: context.client.open_stored(ledger_id, stored, recover=True)
        )
    except NoSuchLedgerError:
        raise _gone(ledger_id) from None
    entries = reader.last_add_confirmed + 1
    # A length on the list is a promise: the ledger was closed before it was written.
    if ledger.HasField("entries") and ledger.entries != entries:
        raise LogCorruptError(
            f"ledger {ledger_id} has {entries} entries, but the list of its log says that it has"
            f" {ledger.entries}"
        )
    last = known.last_offset
    if last is None and reader.last_entry is not None:
        last = stated_offset(reader.last_entry)
    return SealedLedger(ledger_id, entries, reader.length, known.closed_ms, last)


# -- the list


def _check_instance(context: LogContext, path: str, info: ManagedLedgerInfo) -> None:
    """Raise LogCorruptError for a list of another instance: its ids mean other ledgers."""
    named = get_property(info.properties, INSTANCE)
    if context.instance is not None and named is not None and named != context.instance:
        root = context.client.context.metadata_store.paths.root
        raise LogCorruptError(
            f"the list {path} belongs to the instance {named}, and the ledgers below {root} to"
            f" {context.instance}. Nothing was changed. Compare the settings of all brokers with"
            " `daybook cluster show`; if ledgers or ZooKeeper were restored from a copy on purpose,"
            " use `daybook cluster rebind`"
        )


def _record_lengths(info: ManagedLedgerInfo, learned: Sequence[SealedLedger]) -> None:
    """Write the lengths that recovery has found into the list."""
    for ledger in learned:
        set_sealed(info, ledger)


async def _claim(
    ledgers: LedgerList,
    learned: Sequence[SealedLedger],
    key: str,
    number: int,
    next_offset: int,
) -> None:
    """Take the log over by a write of the list that names no new ledger.

    The list gets the `number` as a property: no other host writes the same value.
    """

    def change(info: ManagedLedgerInfo) -> None:
        _record_lengths(info, learned)
        set_property(info, key, str(number))

    await ledgers.take(change, next_offset)


# -- the cursors


async def _recover_cursors(log: ManagedLedger) -> None:
    """Recover and run all cursors.  A cursor that cannot be recovered fails the opening."""
    found: dict[str, Cursor] = {}

    async def recover(name: str) -> None:
        cursor = found[name] = await log.recover_cursor(name)
        await cursor.renew()

    try:
        await _for_each_cursor(log.ledgers, recover)
        # The log may have been lost meanwhile.  Its tasks are cancelled then, and run no cursor.
        log.check()
    except BaseException:
        # A cursor that was renewed has a writer already.
        for cursor in found.values():
            cursor.abandon(FencedError(f"{log.name} was lost while it was being opened"))
        raise
    for name in sorted(found):
        log.adopt(found[name])


async def _for_each_cursor(ledgers: LedgerList, act: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Return the result of `act` for each durable cursor of a log, or raise its first error.

    This host must have written the list before: nobody else creates or deletes a cursor since.
    """
    names = await ledgers.read_children()
    return await _for_each(names, act, _CURSORS_AT_ONCE)


def _raise(bug: Exception) -> None:
    raise bug


@asynccontextmanager
async def open_managed_ledgers(
    *,
    client: LedgerClient,
    store: MetadataStore,
    clock: WallClock,
    rng: Random,
    allows: Callable[[str], bool],
    cache_bytes_max: int = 64 << 20,
) -> AsyncGenerator[ManagedLedgers]:
    """Run the logs of one host.  Logs that are still open at the end are abandoned, not closed.

    `allows` returns True if a new format may be written (`cursor_ledger.CHANGE_2`).
    """
    # An error of the caller leaves as it is, not in the exception group of the nursery.
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        context = LogContext(
            client,
            store,
            clock,
            rng,
            EntryCache(cache_bytes_max),
            nursery,
            allows,
            LogTasks(nursery, _raise, lambda: None),
        )
        logs = ManagedLedgers(context)
        try:
            yield logs
        except Exception as caught:
            error = caught
        finally:
            logs.abandon()
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
