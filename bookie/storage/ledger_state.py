"""What a bookie knows of a ledger besides its entries, and its row in the index.

States of all ledgers are in memory (a few hundred bytes each): whether an add is accepted is
decided in one synchronous step.  Two times are kept apart.  *Accepted* is what the log has taken;
rules look at it, so that an add behind a fence is refused though the fence is still on its way to
the disk.  *Durable* is what the outside may see: `lac` moves when the entry that carried it, or
the explicit LAC, is durable, and never back.

The row, in the index under `ledger_key`:

    | version u8 | flags u8 | last entry i64 | LAC i64 | explicit LAC i64 | key size u16 |
    | body size u32 | first u64 | middle u64 | stated u64 | last u64 | key | body |

Version 1 is without the four positions; a ledger in limbo has a row of version 3, so that nobody
who does not know of limbo takes its absences for certain.  All records of a ledger that was
deleted are from `first` to `middle`, but for its tombstone as it was written again, which is from
`stated` to `last`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from typing import TypeAlias

from daybook.bookie.storage.index import IndexDamagedError
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.write_cache import WriteCache

_ROW = struct.Struct(">BBqqqHIQQQQ")
_ROW_VERSION = 2
_ROW_VERSION_LIMBO = 3
_ROW_V1 = struct.Struct(">BBqqqHI")
ANYWHERE = (1 << 63) - 1  # a last position that is not known
_LAC = struct.Struct(">q")
_LAC_OFFSET = 16  # of the LAC in an entry
# Both stay in memory for each ledger.  Clients send keys of 20 bytes, and LACs of 16 with a digest.
MASTER_KEY_BYTES_MAX = 256
EXPLICIT_LAC_BYTES_MAX = 256

Cancel: TypeAlias = Callable[[], None]


class RowFlag(IntFlag):
    NONE = 0
    FENCED = 1
    DELETED = 2
    HAS_KEY = 4
    HAS_EXPLICIT_LAC = 8
    LIMBO = 16


@dataclass(slots=True, eq=False)
class LacWatch:
    after: int
    callback: Callable[[], None]


@dataclass(slots=True, eq=False)
class LedgerState:
    ledger_id: int
    master_key: bytes | None = None
    key_position: int = -1
    fenced: bool = False  # accepted; what makes it durable is `fence_position`
    fence_position: int = -1
    limbo: bool = False  # records of it may be lost (`limbo`)
    deleted: bool = False
    tombstone_position: int = -1
    first: int = 0  # no record of it is in front of this position
    middle: int = 0  # where the others of a ledger that was deleted are: see above
    stated: int = 0
    last: int = 0
    dropping_row: bool = False  # the next checkpoint drops its row (`tombstones`)
    last_entry: int = -1  # the highest id accepted
    indexed_last: int = -1  # the highest id that a checkpoint holds
    accepted_lac: int = -1
    lac: int = -1
    explicit_lac: int = -1
    explicit_position: int = -1
    explicit_body: bytes | None = None
    recent: WriteCache | None = None
    frozen: WriteCache | None = None  # what the checkpoint under way is writing
    dirty: bool = False  # differs from its row in the index
    watches: list[LacWatch] | None = None

    def mark_deleted(self, position: int) -> None:
        """Its tombstone is there; its other records are in front of that."""
        self.deleted = self.fenced = True
        self.middle = self.stated = self.last = position

    def find_recent(self, entry_id: int) -> tuple[int, int] | None:
        """Position and size of an entry that no finished checkpoint holds."""
        found = self.recent.find(entry_id) if self.recent else None
        if found is None and self.frozen:
            return self.frozen.find(entry_id)
        return found

    def raise_lac(self, lac: int) -> None:
        """This LAC is durable now."""
        if lac > self.lac:
            self.lac = lac
            if self.watches:
                self._wake(lambda watch: watch.after < lac)

    def wake_all(self) -> None:
        """The ledger was fenced or deleted: there is nothing more to wait for."""
        if self.watches:
            self._wake(lambda _: True)

    def _wake(self, due: Callable[[LacWatch], bool]) -> None:
        watches = self.watches or []
        self.watches = [watch for watch in watches if not due(watch)] or None
        for watch in watches:
            if due(watch):
                watch.callback()

    def watch(self, after: int, callback: Callable[[], None]) -> Cancel:
        watch = LacWatch(after, callback)
        if self.watches is None:
            self.watches = []
        self.watches.append(watch)

        def cancel() -> None:
            if self.watches and watch in self.watches:
                self.watches.remove(watch)

        return cancel


def lac_of_entry(entry: bytes | bytearray | memoryview) -> int:
    """The LAC that an entry carries; -1 in something too short to carry one."""
    if len(entry) < _LAC_OFFSET + 8:
        return -1
    lac: int = _LAC.unpack_from(entry, _LAC_OFFSET)[0]
    return lac


def encode_row(state: LedgerState) -> bytes:
    """All that was accepted so far."""
    key = state.master_key
    body = state.explicit_body
    flags = RowFlag.NONE
    if state.fenced:
        flags |= RowFlag.FENCED
    if state.deleted:
        flags |= RowFlag.DELETED
    if key is not None:
        flags |= RowFlag.HAS_KEY
    if body is not None:
        flags |= RowFlag.HAS_EXPLICIT_LAC
    if state.limbo:
        flags |= RowFlag.LIMBO
    key, body = key or b"", body or b""
    lac = max(state.accepted_lac, state.explicit_lac)
    head = _ROW.pack(
        _ROW_VERSION_LIMBO if state.limbo else _ROW_VERSION,
        flags,
        state.last_entry,
        lac,
        state.explicit_lac,
        len(key),
        len(body),
        state.first,
        state.middle,
        state.stated,
        state.last,
    )
    return b"".join((head, key, body))


def decode_row(ledger_id: int, row: bytes) -> LedgerState:
    """Raises IndexDamagedError, UnsupportedVersionError."""
    version = row[0] if row else 0
    if version > _ROW_VERSION_LIMBO:
        known = _ROW_VERSION_LIMBO
        raise UnsupportedVersionError(f"ledger row of version {version}, known: {known}")
    head = _ROW_V1 if version == 1 else _ROW
    if version == 0 or len(row) < head.size:
        raise IndexDamagedError(f"ledger {ledger_id} has a row of {len(row)} bytes")
    _, flags, last_entry, lac, explicit_lac, key_size, body_size, *extent = head.unpack_from(row)
    if len(row) != head.size + key_size + body_size:
        raise IndexDamagedError(f"ledger {ledger_id} has a row of {len(row)} bytes")
    first, middle, stated, last = extent or (0, ANYWHERE, 0, ANYWHERE)
    body_at = head.size + key_size
    key, body = row[head.size : body_at], row[body_at : body_at + body_size]
    return LedgerState(
        ledger_id,
        master_key=key if flags & RowFlag.HAS_KEY else None,
        fenced=bool(flags & RowFlag.FENCED),
        limbo=bool(flags & RowFlag.LIMBO),
        deleted=bool(flags & RowFlag.DELETED),
        first=first,
        middle=middle,
        stated=stated,
        last=last,
        last_entry=last_entry,
        indexed_last=last_entry,
        accepted_lac=lac,
        lac=lac,
        explicit_lac=explicit_lac,
        explicit_body=body if flags & RowFlag.HAS_EXPLICIT_LAC else None,
    )
