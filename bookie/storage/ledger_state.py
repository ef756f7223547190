"""The state of a ledger besides its entries, and its row in the index.

The states of all ledgers are in memory (a few hundred bytes each), so the bookie accepts or refuses
an add in one synchronous step.  *Accepted* and *durable* are kept apart.  A record is accepted when
the log has it in memory.  The rules look at accepted records: an add behind a fence is refused
although the fence is still on its way to the disk.  Clients see durable records only: `lac` rises
when the entry that carried it, or the explicit LAC, is durable.  It never falls.

The row, in the index under `ledger_key`:

    | version u8 | flags u8 | last entry i64 | LAC i64 | explicit LAC i64 | key size u16 |
    | body size u32 | first u64 | middle u64 | stated u64 | last u64 | key | body |

A row of version 1 lacks the four positions.  A ledger in limbo has a row of version 3, so that an
older release, which would believe its absences, refuses the row.  All records of a deleted ledger
lie from `first` to `middle`, except for the copies of its tombstone, which lie from `stated` to
`last`.
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
ANYWHERE = (1 << 63) - 1  # an unknown last position
_LAC = struct.Struct(">q")
_LAC_OFFSET = 16  # where the LAC is in an entry

# The key and the explicit LAC of each ledger stay in memory.  Clients send keys of 20 bytes, and
# LACs of 16 bytes with a digest.
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
    """A client that waits until the LAC is higher than `after`."""

    after: int
    callback: Callable[[], None]


@dataclass(slots=True, eq=False)
class LedgerState:
    """The state of one ledger; a position is that of a record in the log, -1 for none."""

    ledger_id: int
    master_key: bytes | None = None
    key_position: int = -1
    fenced: bool = False  # accepted; durable when the log is durable at `fence_position`
    fence_position: int = -1
    limbo: bool = False  # records of the ledger may be lost (`limbo`)
    deleted: bool = False
    tombstone_position: int = -1
    first: int = 0  # no record of the ledger is in front of this position
    middle: int = 0  # with `stated` and `last`: where the records of a deleted ledger lie
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
    frozen: WriteCache | None = None  # entries that the checkpoint under way writes
    dirty: bool = False  # differs from its row in the index
    watches: list[LacWatch] | None = None

    def mark_deleted(self, position: int) -> None:
        """Note that the ledger is deleted: its tombstone is behind all of its other records."""
        self.deleted = self.fenced = True
        self.middle = self.stated = self.last = position

    def find_recent(self, entry_id: int) -> tuple[int, int] | None:
        """Return the location of an entry that no finished checkpoint has indexed."""
        found = self.recent.find(entry_id) if self.recent else None
        if found is None and self.frozen:
            return self.frozen.find(entry_id)
        return found

    def raise_lac(self, lac: int) -> None:
        """Raise the durable LAC and wake the clients that wait for it."""
        if lac > self.lac:
            self.lac = lac
            if self.watches:
                self._wake(lambda watch: watch.after < lac)

    def wake_all(self) -> None:
        """Wake all waiting clients, since the ledger was fenced or deleted."""
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
    """Return the LAC that an entry carries; -1 if the entry is too short."""
    if len(entry) < _LAC_OFFSET + 8:
        return -1
    lac: int = _LAC.unpack_from(entry, _LAC_OFFSET)[0]
    return lac


def encode_row(state: LedgerState) -> bytes:
    """Encode the accepted state of the ledger."""
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
    """Decode a row; raise `IndexDamagedError` or `UnsupportedVersionError`."""
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
