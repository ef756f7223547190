"""What the store answers: one code for each thing that it can say of an entry or a ledger.

NO_ENTRY and NO_LEDGER are statements of fact: a recovery may end a ledger on them.  Whatever is
not known for certain is UNKNOWN or IO_ERROR, never one of those two.
"""

from enum import IntEnum


class StoreStatus(IntEnum):
    OK = 0
    NO_LEDGER = 1  # nothing of this ledger was ever acknowledged here
    NO_ENTRY = 2  # this entry was never acknowledged here
    FENCED = 3  # the ledger takes only recovery adds
    UNAUTHORIZED = 4  # another master key than the first one
    IO_ERROR = 5  # the disk failed, or gave back other bytes than were written
    READ_ONLY = 6  # no plain adds here for now: no room, or a log that lost records
    UNKNOWN = 7  # absent, but it may have been here (limbo)
    TOO_MANY = 8  # more bytes in flight than the limit
    BAD_REQUEST = 9  # an id or an entry that cannot be


class StoreError(Exception):
    """The store refused, or could not say."""

    def __init__(self, status: StoreStatus, reason: str = "") -> None:
        super().__init__(f"{status.name}: {reason}" if reason else status.name)
        self.status = status
