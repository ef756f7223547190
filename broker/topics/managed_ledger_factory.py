"""The logs of topics are managed ledgers: `TopicLogs` over `managed_ledger`.

What managed ledgers, ledgers and the metadata store report is translated here, once.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from daybook.bookie.errors import LedgerError, NotEnoughBookiesError
from daybook.broker.errors import ConflictError, NotFoundError, StorageFailedError, UnavailableError
from daybook.broker.topics.log_configs import LogConfigs
from daybook.broker.topics.topic_log import TopicLog
from daybook.managed_ledger import offsets
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.cursor_ledger import IN_RECORD
from daybook.managed_ledger.errors import (
    ClosedError,
    FencedError,
    LogCorruptError,
    ManagedLedgerError,
    NoSuchLogError,
)
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import ManagedLedgers
from daybook.managed_ledger.position import Position
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName, url_decode

EPOCH = "pulsar.topic.epoch"
_RANGES_MAX = 1_000  # of one cursor, in statistics for people


@asynccontextmanager
async def translated(what: str) -> AsyncGenerator[None]:
    """FencedError passes: who asked has to look whether the topic is still its own."""
    try:
        yield
    except FencedError:
        raise
    except (LogCorruptError, WireError) as error:
        raise StorageFailedError(f"{what}: {error}") from error
    except ClosedError as error:
        raise UnavailableError(f"{what}: {error}") from error
    except NotEnoughBookiesError as error:
        raise UnavailableError(f"{what}: {error}; start more bookies") from error
    except (LedgerError, MetadataError, ManagedLedgerError) as error:
        raise UnavailableError(f"{what}: {error}") from error


class ManagedLogs:
    """`TopicLogs` of one broker."""

    def __init__(self, ledgers: ManagedLedgers, configs: LogConfigs) -> None:
        self._ledgers = ledgers
        self._configs = configs

    async def exists(self, name: TopicName) -> bool:
        async with translated(name.full):
            return await self._ledgers.exists(name.managed_ledger_name)

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        if not await self._configs.may_create(name.namespace):
            raise ConflictError(f"the namespace {name.namespace} is being deleted")
        async with translated(name.full):
            return await self._ledgers.create(name.managed_ledger_name, properties)

    async def stored(self, namespace: str) -> list[TopicName]:
        async with translated(namespace):
            encoded = await self._ledgers.list(f"{namespace}/persistent")
        return [TopicName.parse(f"persistent://{namespace}/{url_decode(e)}") for e in encoded]

    async def open(self, name: TopicName, *, create: bool) -> TopicLog:
        config = await self._configs.of(name.namespace)
        create = create and await self._configs.may_create(name.namespace)
        async with translated(name.full):
            try:
                return await self._ledgers.open(name.managed_ledger_name, config, create=create)
            except NoSuchLogError:
                raise NotFoundError(f"there is no topic {name.full}") from None

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

    async def offset_before(self, log: TopicLog, position: Position) -> int:
        managed = _managed(log)
        async with translated(managed.name):
            return await offsets.offset_before(managed, position)

    async def first_offset(self, log: TopicLog) -> int:
        managed = _managed(log)
        async with translated(managed.name):
            return (await offsets.retained_offsets(managed))[0]

    def epoch_of(self, log: TopicLog) -> int | None:
        text = _managed(log).get_property(EPOCH)
        return int(text) if text is not None and text.isdigit() else None

    async def store_epoch(self, log: TopicLog, epoch: int) -> None:
        managed = _managed(log)
        async with translated(managed.name):
            await managed.set_property(EPOCH, str(epoch))

    def is_terminated(self, log: TopicLog) -> bool:
        return _managed(log).terminated is not None

    async def terminate(self, log: TopicLog) -> Position:
        managed = _managed(log)
        async with translated(managed.name):
            return await managed.terminate()

    def internal_stats(self, log: TopicLog) -> dict[str, object]:
        managed = _managed(log)
        sealed: list[dict[str, object]] = [
            {"ledgerId": row.ledger_id, "entries": row.entries, "size": row.bytes}
            for row in managed.ledgers.sealed
        ]
        current = {
            "ledgerId": managed.current_ledger_id,
            "entries": managed.current_entries,
            "size": 0,
        }
        return {
            "entriesAddedCounter": managed.appended_entries,
            "numberOfEntries": managed.entries_between(
                managed.before_first, managed.last_confirmed
            ),
            "totalSize": managed.size_bytes,
            "currentLedgerEntries": managed.current_entries,
            "pendingAddBytes": managed.pending_bytes,
            "lastConfirmedEntry": str(managed.last_confirmed),
            "state": managed.state.name.title(),
            "waitingFor": managed.waiting_for,
            "ledgerListBytes": managed.room.bytes,
            "ledgerListBytesMax": managed.room.bytes_max,
            "ledgerListRollStretch": managed.room.stretch,
            "ledgerListFull": managed.full,
            "ledgers": [*sealed, current],
            "cursors": {
                name: {
                    "markDeletePosition": str(cursor.mark_delete),
                    "readPosition": str(cursor.read_start),
                    "cursorLedger": cursor.ledger_id,
                    "state": "NoLedger" if cursor.ledger_id == IN_RECORD else "Open",
                    "individuallyDeletedMessages": _ranges(cursor),
                    "entriesAcknowledgedAbove": cursor.acked_above,
                    "recordsThatPulsarMisreads": cursor.old_records,
                    "properties": dict(cursor.properties),
                }
                for name, cursor in sorted(managed.cursors.items())
            },
        }


def _ranges(cursor: Cursor) -> str:
    """As Pulsar writes them: each range begins behind its first position."""
    found = cursor.acked_ranges(_RANGES_MAX + 1)
    texts = [f"({ledger}:{first - 1}..{ledger}:{last}]" for ledger, first, last in found]
    if len(texts) > _RANGES_MAX:
        texts[_RANGES_MAX] = "..."
    return f"[{','.join(texts)}]"


def _managed(log: TopicLog) -> ManagedLedger:
    """Logs come from `open` above, so they are managed ledgers."""
    assert isinstance(log, ManagedLedger)
    return log
