"""A cursor's record in the metadata store.

Each write is a multi that checks the version of the log's list, so that a stale owner touches
nothing, and replaces the version of the record that was written last, so that a write which is
carried out late, after we have gone on, changes nothing.
"""

from collections.abc import Iterable

from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import cursor_path, message_ranges
from daybook.managed_ledger.records_pb2 import LongProperty, ManagedCursorInfo
from daybook.wire.metadata.store import (
    Create,
    Delete,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    RecordExistsError,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)

IN_RECORD = -1  # the state is in the record, not in a ledger


class CursorRecord:
    """`info` is what the store holds, or will hold once `create` was called."""

    def __init__(self, ledgers: LedgerList, context: LogContext, log_name: str, name: str) -> None:
        self.path = cursor_path(log_name, name)
        self.info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        self.version = 0
        self._ledgers = ledgers
        self._context = context

    async def create(self, info: ManagedCursorInfo) -> None:
        """RecordExistsError if there is one with another value; FencedError, MetadataError."""
        value = info.SerializeToString()
        await self._write(Create(self.path, value), value, 0)
        self.info, self.version = info, 0

    async def store(self, info: ManagedCursorInfo) -> None:
        """FencedError, MetadataError."""
        value = info.SerializeToString()
        following = self.version + 1
        await self._write(Set(self.path, value, self.version), value, following)
        self.info, self.version = info, following

    async def delete(self) -> None:
        """One that is not there is deleted already.  FencedError, MetadataError."""
        await self._write(Delete(self.path, self.version), None, 0)

    async def _write(self, operation: Operation, value: bytes | None, version: int) -> None:
        """Until it is carried out; afterwards the record has `value` and `version`."""
        while True:
            try:
                await self._ledgers.guarded([operation])
            except StoreUnavailableError:
                await self._context.pause()
            except OutcomeUnknownError:
                if await self._holds(value, version):
                    return
                await self._context.pause()
            except (NoRecordError, RecordExistsError, VersionConflictError) as error:
                if await self._holds(value, version):
                    return
                if isinstance(error, RecordExistsError):
                    raise
                raise FencedError(f"{self.path} was changed by somebody else") from error
            else:
                return

    async def _holds(self, value: bytes | None, version: int) -> bool:
        record = await self._context.newest(self.path)
        if value is None or record is None:
            return value is None and record is None
        return record.value == value and record.stat.version == version


def set_position(info: ManagedCursorInfo, mark_delete: Position) -> None:
    info.markDeleteLedgerId, info.markDeleteEntryId = mark_delete.ledger_id, mark_delete.entry_id


def pointing(info: ManagedCursorInfo, ledger_id: int, mark_delete: Position) -> ManagedCursorInfo:
    """The record of a cursor whose state is in a ledger."""
    made = ManagedCursorInfo()
    made.CopyFrom(info)
    made.cursorsLedgerId = ledger_id
    set_position(made, mark_delete)
    del made.individualDeletedMessages[:]
    del made.batchedEntryDeletionIndexInfo[:]
    return made


def folded(
    info: ManagedCursorInfo,
    mark_delete: Position,
    runs: Iterable[tuple[int, int, int]],
    properties: dict[str, int],
) -> ManagedCursorInfo:
    """The record of a cursor whose whole state is in it."""
    made = pointing(info, IN_RECORD, mark_delete)
    made.individualDeletedMessages.extend(message_ranges(runs))
    del made.properties[:]
    made.properties.extend(LongProperty(name=n, value=v) for n, v in sorted(properties.items()))
    return made
