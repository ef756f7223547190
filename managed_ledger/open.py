"""Open, create and delete logs.

Opening takes a log over from whoever served it before, alive or not:

1. read the list and its version
2. have the last two ledgers prove that they are the log's; recover, which fences, those of them
   that are not closed (a roll leaves two at most)
3. create a new ledger
4. put it on the list by compare-and-swap with the version of step 1
5. recover the cursors, whose ledgers prove that they are theirs, and are fenced; a cursor whose
   ledger has records that Pulsar misreads gets a new ledger

Nothing is served before step 4, and cursors are not even read before it.  A conflict in step 4
means that somebody else does the same: FencedError, and the caller finds out whether the log is
still meant to be its own before it tries again.

A list of which half is used is trimmed by the same write that puts the new ledger on it.  The
ledgers that may go depend on where cursors stand, and that is not known before the log is ours:
until then its owner may create a cursor, or set one back, in front of what we would drop, and no
condition on the version of the list, or on records that we have seen, rules that out (a change in a
cursor's ledger moves no version, and a new cursor has none that we could name).  So step 4 has two
writes there:

4a. claim the list: the lengths of step 2 and the id of our new ledger, as a property, by
    compare-and-swap with the version of step 1.  From here on the log is ours: every write of the
    old owner to a cursor's record checks the version of the list, and fails
4b. read where the cursors stand, which fences their ledgers: nothing can change that any more
4c. by compare-and-swap with the version of 4a: put the new ledger on the list, take the claim back,
    and drop what every cursor and retention have let go

A broker that reads the list between 4a and 4c may take it over, as ever, and then 4c fails.  The id
in the claim is what tells two claims apart that would be the same otherwise.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from typing import TypeVar

import trio

from daybook.bookie.ledger.client import LedgerClient
from daybook.managed_ledger.cache import EntryCache
from daybook.managed_ledger.context import LogConfig, LogContext, open_home
from daybook.managed_ledger.cursor import Cursor, recover_cursor, stored_position
from daybook.managed_ledger.errors import FencedError, LogCorruptError, NoSuchLogError
from daybook.managed_ledger.ledger_list import LedgerList, Row, drop, news, set_sealed
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.orphans import remove_orphans
from daybook.managed_ledger.protocol.orphans import Suspects
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.records import (
    INSTANCE,
    OPENING,
    Owner,
    clear_property,
    get_property,
    log_path,
    parse,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.managed_ledger.recovery import recover_tail
from daybook.managed_ledger.rolling import create_ledger, put_on_list
from daybook.managed_ledger.trimming import trimmable
from daybook.wire.clock import WallClock
from daybook.wire.metadata.store import (
    Check,
    Delete,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    StoreUnavailableError,
    VersionConflictError,
)

T = TypeVar("T")
_CURSORS_AT_ONCE = 32
_OPENED_MIN = 64
_NOT_ANSWERED = (OutcomeUnknownError, StoreUnavailableError)


class ManagedLedgers:
    """The logs of one host.  See `open_managed_ledgers`."""

    def __init__(self, context: LogContext) -> None:
        self._context = context  # what opens from here on; `bind` changes it
        self._opened: list[ManagedLedger] = []  # and some that were closed since
        self._opened_max = _OPENED_MIN
        self._suspects = Suspects()

    @property
    def cache(self) -> EntryCache:
        return self._context.cache

    def bind(self, instance_id: str) -> None:
        """The INSTANCEID of the ledgers: lists that name another one are refused from here on."""
        self._context = replace(self._context, instance=instance_id)

    def name_tree(self, tree: str) -> None:
        """The id of the tree of logs: ledgers that are made from here on say it."""
        self._context = replace(self._context, tree=tree)

    async def exists(self, name: str) -> bool:
        """No is the newest answer; yes may be an old one: opening it will tell."""
        context, path = self._context, log_path(name)
        if await context.answered(lambda: context.store.get(path)) is not None:
            return True
        return await context.newest(path) is not None

    async def create(self, name: str, properties: Mapping[str, str] | None = None) -> bool:
        """Make an empty log; False if there is one already."""
        info = ManagedLedgerInfo()
        for key, value in sorted((properties or {}).items()):
            set_property(info, key, value)
        if self._context.instance is not None:
            set_property(info, INSTANCE, self._context.instance)
        path, content, in_doubt = log_path(name), info.SerializeToString(), False
        while True:
            try:
                await self._context.store.create(path, content, make_parents=True)
            except RecordExistsError:
                found = await self._context.newest(path) if in_doubt else None
                return found is not None and found.value == content
            except OutcomeUnknownError:
                in_doubt = True
                await self._context.pause()
            except StoreUnavailableError:
                await self._context.pause()
            else:
                return True

    async def list(self, prefix: str) -> list[str]:
        """The names, behind `prefix`, of the logs there: of `tenant/namespace/persistent`, say."""
        path = log_path(prefix)
        store = self._context.store
        return await self._context.answered(lambda: store.get_children(path)) or []

    async def open(
        self, name: str, config: LogConfig | None = None, *, create: bool = True
    ) -> ManagedLedger:
        """Take the log over.

        NoSuchLogError, FencedError, LogCorruptError; LedgerError and MetadataError if it does not
        work now.
        """
        home = await self._context.nursery.start(open_home)
        try:
            record = await self._found(name, create=create)
            log = await _take_over(
                name, replace(self._context, nursery=home), config or LogConfig(), record
            )
        except BaseException:
            home.cancel_scope.cancel()
            raise
        self._remember(log)
        return log

    async def _found(self, name: str, *, create: bool) -> Record:
        """The newest list: what an older one names may have been deleted since."""
        path = log_path(name)
        record = await self._context.newest(path)
        if record is None:
            if not create:
                raise NoSuchLogError(name)
            await self.create(name)
            record = await self._context.newest(path)
            if record is None:
                raise FencedError(f"{name} was deleted while it was being created")
        return record

    def _remember(self, log: ManagedLedger) -> None:
        self._opened.append(log)
        if len(self._opened) > self._opened_max:
            self._opened = [each for each in self._opened if each.usable]
            self._opened_max = max(_OPENED_MIN, 2 * len(self._opened))

    async def remove_orphans(
        self, *, age_s: float = 0.0, of_gone_logs: bool = False
    ) -> Sequence[int]:
        """Remove ledgers which nothing names: of the logs that are open here, and of those gone.

        MetadataError.
        """
        return await remove_orphans(
            self._context, self._opened, self._suspects, age_s=age_s, of_gone_logs=of_gone_logs
        )

    def abandon(self) -> None:
        """Give up all logs that are still open."""
        for log in self._opened:
            log.abandon()

    async def delete(self, log: ManagedLedger) -> None:
        """Delete a log that is open, and all that belongs to it.  The record goes first."""
        doomed = await log.clear()
        path, version = log.ledgers.path, log.ledgers.version
        while True:
            try:
                await self._context.store.delete(path, version)
                break
            except NoRecordError:
                break
            except VersionConflictError:
                raise FencedError(f"{log.name} was taken over while it was being deleted") from None
            except NotEmptyError:
                await self._delete_stray_cursors(log.name, version)
            except _NOT_ANSWERED:
                await self._context.pause()
        await self._context.forget(doomed, log.ledgers.owner)

    async def _delete_stray_cursors(self, log_name: str, version: int) -> None:
        """Of creations that were given up halfway: no log has them.

        Only while the list is as we have written it: else they are somebody else's.
        """
        context, path = self._context, log_path(log_name)
        for name in await context.newest_children(path):
            child = f"{path}/{name}"
            record = await context.newest(child)
            if record is None:
                continue
            operations: list[Operation] = [Check(path, version), Delete(child, record.stat.version)]
            with suppress(NoRecordError, VersionConflictError, *_NOT_ANSWERED):
                await context.store.multi(operations)
                with suppress(LogCorruptError):
                    info = parse(ManagedCursorInfo(), record.value, name)
                    if info.cursorsLedgerId >= 0:
                        await context.forget([info.cursorsLedgerId], Owner(log_name, name))


async def _take_over(
    name: str, context: LogContext, config: LogConfig, record: Record
) -> ManagedLedger:
    """Steps 2 to 5, in the middle of which one write makes the log ours."""
    path = log_path(name)
    info = parse(ManagedLedgerInfo(), record.value, path)
    _check_instance(context, path, info)
    ledgers = LedgerList(context, name, info, record.stat.version)
    next_offset = await recover_tail(context, ledgers)
    writer = await create_ledger(context, name, config)
    learned = news(ledgers)
    empty = [row.ledger_id for row in learned if not row.entries]
    trimmed: list[int] = []

    async def update(add: Callable[[ManagedLedgerInfo], None]) -> None:
        if Room(ledgers.bytes, config.list_bytes_max).alarming:
            await _claim(ledgers, learned, writer.ledger_id, next_offset)
            held = await _of_cursors(
                context, name, lambda cursor: stored_position(context, name, cursor, ledgers)
            )
            now_ms = context.clock.now_ms()
            trimmed[:] = trimmable(ledgers.rows, held.values(), config, now_ms)

        def change(info: ManagedLedgerInfo) -> None:
            _settle(info, learned)
            clear_property(info, OPENING)
            drop(info, trimmed)
            add(info)

        await ledgers.update(change, next_offset)

    await put_on_list(context, ledgers, writer, update)
    log = ManagedLedger(name, context, config, ledgers, writer, next_offset)
    try:
        await context.forget(empty, ledgers.owner)
        # There may be thousands.
        context.nursery.start_soon(context.forget, trimmed, ledgers.owner)
        await _recover_cursors(log)
    except BaseException:
        log.abandon()  # Else its writer would hear of bookies for as long as the host lives.
        raise
    return log


def _check_instance(context: LogContext, path: str, info: ManagedLedgerInfo) -> None:
    """LogCorruptError for a list of another instance: its ids mean other ledgers."""
    said = get_property(info.properties, INSTANCE)
    if context.instance is not None and said is not None and said != context.instance:
        root = context.client.context.metadata_store.paths.root
        raise LogCorruptError(
            f"the list {path} belongs to the instance {said}, and the ledgers below {root} to"
            f" {context.instance}. Nothing was changed. Compare the settings of all brokers with"
            " `daybook cluster show`; if ledgers or ZooKeeper were restored from a copy on purpose,"
            " use `daybook cluster rebind`"
        )


def _settle(info: ManagedLedgerInfo, learned: Sequence[Row]) -> None:
    """Write into the list what recovery has found.  Most rows of a long list stay as they are."""
    for row in learned:
        set_sealed(info, row)


async def _claim(
    ledgers: LedgerList, learned: Sequence[Row], ledger_id: int, next_offset: int
) -> None:
    """Make the log ours by a write of the list that names no new ledger yet."""

    def change(info: ManagedLedgerInfo) -> None:
        _settle(info, learned)
        set_property(info, OPENING, str(ledger_id))

    await ledgers.update(change, next_offset)


async def _recover_cursors(log: ManagedLedger) -> None:
    """One that cannot be recovered fails the open."""
    found: dict[str, Cursor] = {}

    async def recover(name: str) -> None:
        cursor = found[name] = await recover_cursor(log, name)
        await cursor.renew()

    try:
        await _of_cursors(log.context, log.name, recover)
        log.check()  # It may have been lost meanwhile: then nothing of it runs any more.
    except BaseException:
        for cursor in found.values():
            cursor.abandon(FencedError(f"{log.name} could not be opened"))  # and its new writer
        raise
    for name in sorted(found):
        log.adopt(found[name])


async def _of_cursors(
    context: LogContext, log_name: str, ask: Callable[[str], Awaitable[T]]
) -> dict[str, T]:
    """Return what `ask` says of each durable cursor of a log; raise its first error."""
    names = await context.newest_children(log_path(log_name))
    found: dict[str, T] = {}
    errors: list[Exception] = []
    limiter = trio.CapacityLimiter(_CURSORS_AT_ONCE)

    async def run(name: str) -> None:
        async with limiter:
            if errors:
                return
            try:
                found[name] = await ask(name)
            except Exception as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(run, name)
    if errors:
        raise errors[0]
    return found


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
    """For an `async with`; logs that are still open at its end are abandoned, not closed.

    `allows` says whether a new format may be written (`cursor_ledger.CHANGE_2`).
    """
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        context = LogContext(
            client, store, clock, rng, EntryCache(cache_bytes_max), nursery, allows
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
