"""The codes with which the store answers a request for an entry or a ledger.

NO_ENTRY and NO_LEDGER are statements of fact: a recovery may close a ledger because of them.  If
the store is not certain, it answers UNKNOWN or IO_ERROR instead.
"""

from enum import IntEnum


class StoreStatus(IntEnum):
    OK = 0
    NO_LEDGER = 1  # no record of this ledger was ever acknowledged here
    NO_ENTRY = 2  # this entry was never acknowledged here
    FENCED = 3  # the ledger accepts only recovery adds
    UNAUTHORIZED = 4  # not the master key of the first request
    IO_ERROR = 5  # the disk failed, or the bytes are not as they were written
    READ_ONLY = 6  # no plain adds for now: no space, or a log that lost records
    UNKNOWN = 7  # absent, but it may have been here (limbo)
    TOO_MANY = 8  # more bytes in flight than the limit
    BAD_REQUEST = 9  # an invalid id or entry


class StoreError(Exception):
    """The store refused the request, or does not know the answer."""

    def __init__(self, status: StoreStatus, reason: str = "") -> None:
        super().__init__(f"{status.name}: {reason}" if reason else status.name)
        self.status = status
