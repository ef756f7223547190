"""Limits of memory and of pending requests of one ledger client."""

from dataclasses import dataclass, field

from daybook.bookie.ledger.context import LedgerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one client; bytes are those of payloads."""

    # One writer may append so much that is not confirmed.
    pending_bytes_max: int = 16 << 20
    pending_entries_max: int = 10_000
    # One advanced writer may hold so much that waits for a missing entry.
    held_bytes_max: int = 16 << 20
    held_entries_max: int = 10_000
    read_bytes: int = 1 << 20  # one part of a stream
    read_ahead: int = 6  # parts of one stream that may wait for the application
    # Parts that all streams together may read at once; each stream may always read one.
    reads_max: int = 64
    ledger: LedgerLimits = field(default_factory=LedgerLimits)  # timeouts, among other things
