"""The logs of topics are managed ledgers: `TopicLogs` over `managed_ledger`.

`LogConfigs` says how logs are kept: how many copies, and for how long.  The number of copies of a
new ledger comes from the persistence policy of the topic, else of its namespace, else from the
settings, else ("auto") from the number of bookies.  Retention comes from policies and settings in
the same order.

Errors of managed ledgers, ledgers and the metadata store are translated here for the methods of
`TopicLogs`; for the methods of a log itself, the topic does that (`topic_log.translated`).
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import trio

from daybook.bookie.errors import LedgerError, NotEnoughBookiesError
from daybook.bookie.ledger.client import Quorums
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.config import BrokerConfig, QuorumsConfig
from daybook.broker.errors import (
    ConflictError,
    NotFoundError,
    StorageFailedError,
    UnavailableError,
)
from daybook.broker.namespaces.policies import Policies, live_namespace
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.namespaces.policy_types import Persistence, Retention
from daybook.broker.topics.log_stats import log_info, log_stats
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.broker.topics.topic_properties import EPOCH, is_reserved, shown
from daybook.managed_ledger import offsets, stored_times
from daybook.managed_ledger.behind import EntryStart
from daybook.managed_ledger.compacted import (
    CompactedReader,
    CompactedWriter,
    create_compacted,
    delete_compacted,
    open_compacted,
)
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.errors import (
    ClosedError,
    FencedError,
    LogCorruptError,
    ManagedLedgerError,
    NoSuchLogError,
)
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import ManagedLedgers, ignore_step
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol import trim
from daybook.managed_ledger.recount import recount
from daybook.managed_ledger.sinks.progress import (
    Progress,
    encode_progress,
    progress_of,
    property_of,
)
from daybook.wire.errors import WireError
from daybook.wire.logging import Log
from daybook.wire.metadata.shared_reads import SharedReads
from daybook.wire.metadata.store import (
    Check,
    MetadataError,
    MetadataStore,
    NoRecordError,
    VersionConflictError,
)
from daybook.wire.topics import TopicName, url_decode

_CREATIONS_MAX = 16  # Each one that fails is another change of the namespace.
_MINUTE_MS = 60_000
_COUNT_AGE_S = 1.0
_MB = 1 << 20
_NAMES_PER_TURN = 1_000  # A long list lets other tasks run after so many.
_SNAPSHOT_BYTES_MAX = 4 * _MB  # or the largest message, if that is less: bookies take both


# -- how logs are kept


def automatic(bookies: int) -> Quorums:
    """Return the quorums for a cluster of so many bookies: three copies, if there are enough."""
    match bookies:
        case 1:
            return Quorums(1, 1, 1)
        case 2:
            return Quorums(2, 2, 2)
        case _:
            return Quorums(3, 3, 2)


def retained(policy: Retention) -> trim.Retention:
    minutes, megabytes = policy.retentionTimeInMinutes, policy.retentionSizeInMB
    return trim.Retention(
        None if minutes < 0 else minutes * _MINUTE_MS, None if megabytes < 0 else megabytes * _MB
    )


class LogConfigs:
    """The configuration that is in force for logs at this moment."""

    def __init__(
        self,
        store: MetadataStore,
        paths: LedgerPaths,
        policies: Policies,
        config: BrokerConfig,
        log: Log,
        base: LogConfig | None = None,
    ) -> None:
        """`base` has the values for which there is no setting."""
        self._store = store
        # Many topics of a namespace may be created at the same time.
        self._shared_reads = SharedReads(store.get)
        self._paths = paths
        self._policies = policies
        self._config = config
        self._log = log
        self._base = base or LogConfig()
        self._last: tuple[EffectivePolicies, Quorums, LogConfig] | None = None
        self._warned = False
        self._counted: tuple[int, float] | None = None  # bookies, and when they were counted

    async def for_topic(self, topic: TopicName) -> LogConfig:
        """Return the configuration.  Raise NotFoundError or UnavailableError."""
        return await self.for_policies(await self._policies.effective(topic))

    async def for_policies(self, policies: EffectivePolicies) -> LogConfig:
        quorums = await self._quorums(policies.persistence)
        # Topics without policies of their own share one object, and so they share the result.
        if self._last is None or self._last[0] is not policies or self._last[1] != quorums:
            self._last = policies, quorums, self._config_of(policies, quorums)
        return self._last[2]

    def _config_of(self, policies: EffectivePolicies, quorums: Quorums) -> LogConfig:
        return replace(
            self._base,
            quorums=quorums,
            retention=retained(policies.retention),
            roll_entries=self._config.roll_entries,
            roll_age_s=self._config.roll_age_s,
            roll_age_min_s=self._config.roll_age_min_s,
            list_bytes_max=self._config.ledger_list_bytes_max,
            flush_s=self._config.ack_flush_s,
            cursor_roll_records=self._config.cursor_roll_records,
            cursor_snapshot_records=self._config.cursor_snapshot_records,
            cursor_snapshot_s=self._config.cursor_snapshot_s,
            cursor_snapshot_bytes_max=min(_SNAPSHOT_BYTES_MAX, self._config.max_message_size),
        )

    async def live_namespace(self, namespace: str) -> Check:
        """Return the condition that the namespace is not being deleted.

        Its deletion might miss a log that is created without this condition.  Raise NotFoundError,
        ConflictError, UnavailableError.
        """
        return await live_namespace(self._shared_reads.get, namespace)

    async def quorums(self, topic: TopicName) -> Quorums:
        """Return the quorums of new ledgers.  Raise NotFoundError or UnavailableError."""
        return await self._quorums((await self._policies.effective(topic)).persistence)

    async def default_quorums(self) -> Quorums:
        """Return the quorums of ledgers that belong to no topic.  Raise UnavailableError."""
        return await self._quorums(None)

    async def _quorums(self, persistence: Persistence | None) -> Quorums:
        if persistence is not None:
            return Quorums(
                persistence.bookkeeperEnsemble,
                persistence.bookkeeperWriteQuorum,
                persistence.bookkeeperAckQuorum,
            )
        configured = self._config.quorums
        if isinstance(configured, QuorumsConfig):
            return Quorums(configured.ensemble, configured.write, configured.ack)
        known = await self._count_bookies()
        if known < 3 and not self._warned:
            self._warned = True
            self._log.warning(
                "there are too few bookies for three copies, so new ledgers have fewer: start more"
                " bookies, or set `quorums`",
                bookies=known,
            )
        return automatic(known)

    async def _count_bookies(self) -> int:
        """Return the number of bookies; topics that are loaded together share one look."""
        now_s = trio.current_time()
        if self._counted is None or now_s - self._counted[1] >= _COUNT_AGE_S:
            try:
                known = len(await known_bookies(self._store, self._paths))
            except MetadataError as error:
                raise UnavailableError(f"the bookies cannot be counted now: {error}") from error
            self._counted = known, now_s
        return self._counted[0]


# -- logs


@asynccontextmanager
async def translated(what: str) -> AsyncGenerator[None]:
    """Translate errors to BrokerErrors.

    FencedError passes: its handler has to find out whether the topic is still owned.
    """
    try:
        yield
    except FencedError:
        raise
    except (LogCorruptError, WireError) as error:
        raise StorageFailedError(f"{what}: {error}") from error
    except ClosedError as error:
        raise UnavailableError(f"{what}: {error}") from error
    except NotEnoughBookiesError as error:
        raise UnavailableError(
            f"{what}: {error}; start more bookies, or lower the quorums"
        ) from error
    except (LedgerError, MetadataError, ManagedLedgerError) as error:
        raise UnavailableError(f"{what}: {error}") from error


class ManagedLedgerFactory:
    """The `TopicLogs` of one broker."""

    def __init__(self, ledgers: ManagedLedgers, configs: LogConfigs) -> None:
        self._ledgers = ledgers
        self._configs = configs

    @property
    def in_contact(self) -> bool:
        return self._ledgers.in_contact

    async def exists(self, name: TopicName) -> bool:
        async with translated(name.full):
            return await self._ledgers.exists(name.managed_ledger_name)

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        for _ in range(_CREATIONS_MAX):
            live = await self._configs.live_namespace(name.namespace)
            async with translated(name.full):
                # The namespace may have been changed meanwhile: look at it again.
                with suppress(NoRecordError, VersionConflictError):
                    return await self._ledgers.create(
                        name.managed_ledger_name, properties, condition=live
                    )
        raise UnavailableError(f"the namespace {name.namespace} keeps changing: try again")

    async def stored(self, namespace: str) -> list[TopicName]:
        async with translated(namespace):
            encoded = await self._ledgers.list(f"{namespace}/persistent")
        found: list[TopicName] = []
        for count, each in enumerate(encoded, 1):
            found.append(TopicName.parse(f"persistent://{namespace}/{url_decode(each)}"))
            if not count % _NAMES_PER_TURN:
                await trio.lowlevel.checkpoint()
        return found

    async def open(
        self, name: TopicName, *, create: bool, on_step: Callable[[str], None] = ignore_step
    ) -> TopicLog:
        config = await self._configs.for_topic(name)
        try:
            return await self._open(name, config, on_step)
        except NotFoundError:
            if not create:
                raise
        try:
            await self.create(name, {})
        except ConflictError as error:
            raise NotFoundError(f"the topic {name.full} does not exist, and {error}") from None
        return await self._open(name, config, on_step)

    async def _open(
        self, name: TopicName, config: LogConfig, on_step: Callable[[str], None]
    ) -> TopicLog:
        async with translated(name.full):
            try:
                return await self._ledgers.open(
                    name.managed_ledger_name, config, create=False, on_step=on_step
                )
            except NoSuchLogError:
                raise NotFoundError(f"the topic {name.full} does not exist") from None

    async def apply(self, policies: EffectivePolicies, logs: Iterable[TopicLog]) -> None:
        config = await self._configs.for_policies(policies)
        for log in logs:
            _managed(log).config = config

    async def delete(self, log: TopicLog) -> None:
        managed = _managed(log)
        async with translated(managed.name):
            await self._ledgers.delete(managed)

    async def position_of_offset(self, log: TopicLog, offset: int) -> Position:
        managed = _managed(log)
        async with translated(managed.name):
            return await offsets.position_of_offset(managed, offset)

    async def position_of_time(self, log: TopicLog, publish_ms: int) -> Position:
        managed = _managed(log)
        async with translated(managed.name):
            return await offsets.position_of_time(managed, publish_ms)

    async def stored_ms(self, log: TopicLog, position: Position) -> int | None:
        managed = _managed(log)
        async with translated(managed.name):
            return await stored_times.stored_ms(managed, position)

    async def first_stored_since(self, log: TopicLog, start: Position, since_ms: int) -> Position:
        managed = _managed(log)
        async with translated(managed.name):
            return await stored_times.first_stored_since(managed, start, since_ms)

    def position_with_behind(self, log: TopicLog, start: Position, bytes_max: int) -> Position:
        return stored_times.position_with_behind(_managed(log), start, bytes_max)

    async def entry_start(self, log: TopicLog, position: Position) -> EntryStart | None:
        managed = _managed(log)
        async with translated(managed.name):
            return await offsets.start_of(managed, position)

    async def recount(self, log: TopicLog, cursor: TopicCursor) -> None:
        managed = _managed(log)
        assert isinstance(cursor, Cursor)
        async with translated(managed.name):
            await recount(managed, cursor)

    async def first_offset(self, log: TopicLog) -> int:
        managed = _managed(log)
        async with translated(managed.name):
            return (await offsets.retained_offsets(managed))[0]

    async def sealed_offsets(self, log: TopicLog) -> list[offsets.LedgerOffsets]:
        managed = _managed(log)
        async with translated(managed.name):
            return await offsets.sealed_offsets(managed)

    def epoch_of(self, log: TopicLog) -> int | None:
        text = _managed(log).get_property(EPOCH)
        return int(text) if text is not None and text.isdigit() else None

    async def store_epoch(self, log: TopicLog, epoch: int) -> None:
        managed = _managed(log)
        async with translated(managed.name):
            await managed.set_property(EPOCH, str(epoch))

    def properties(self, log: TopicLog) -> dict[str, str]:
        return shown(_managed(log).properties.items())

    async def change_properties(
        self, log: TopicLog, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        def changed(properties: dict[str, str]) -> dict[str, str]:
            reserved = {name: v for name, v in properties.items() if is_reserved(name)}
            return change(shown(properties.items())) | reserved

        managed = _managed(log)
        async with translated(managed.name):
            await managed.change_properties(changed)

    def sink_progress(self, log: TopicLog) -> dict[str, Progress]:
        return progress_of(_managed(log).properties)

    async def store_sink_progress(
        self,
        log: TopicLog,
        sink_id: str,
        make: Callable[[], Progress],
        forgotten: Iterable[str] = (),
    ) -> None:
        managed, gone = _managed(log), [property_of(each) for each in forgotten]

        def changed(properties: dict[str, str]) -> dict[str, str]:
            kept = {name: value for name, value in properties.items() if name not in gone}
            return kept | {property_of(sink_id): encode_progress(make())}

        async with translated(managed.name):
            await managed.change_properties(changed)

    def is_terminated(self, log: TopicLog) -> bool:
        return _managed(log).terminated is not None

    async def terminate(self, log: TopicLog) -> Position:
        managed = _managed(log)
        async with translated(managed.name):
            return await managed.terminate()

    async def create_compacted(self, log: TopicLog, horizon: Position) -> CompactedWriter:
        managed = _managed(log)
        async with translated(managed.name):
            return await create_compacted(managed, horizon)

    async def open_compacted(self, log: TopicLog, ledger_id: int) -> CompactedReader:
        return await open_compacted(_managed(log), ledger_id)

    async def delete_compacted(self, log: TopicLog, ledger_id: int) -> None:
        managed = _managed(log)
        await delete_compacted(managed.context, managed.name, ledger_id)

    async def truncate(self, log: TopicLog) -> None:
        managed = _managed(log)
        async with translated(managed.name):
            await managed.truncate()

    def internal_info(self, log: TopicLog) -> dict[str, object]:
        return log_info(_managed(log))

    def internal_stats(self, log: TopicLog) -> dict[str, object]:
        return log_stats(_managed(log))


def _managed(log: TopicLog) -> ManagedLedger:
    """Return the log as the managed ledger that it is: all logs come from `open` above."""
    assert isinstance(log, ManagedLedger)
    return log
