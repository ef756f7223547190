"""How much of everything one client of ledgers takes."""

from dataclasses import dataclass, field

from daybook.bookie.ledger.context import LedgerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes are those of payloads."""

    pending_bytes_max: int = 16 << 20  # of one writer: appended and not confirmed
    pending_entries_max: int = 10_000  # likewise
    held_bytes_max: int = 16 << 20  # of one advanced writer: entries that wait for one before them
    held_entries_max: int = 10_000  # likewise
    read_bytes: int = 1 << 20  # asked for at a time
    read_ahead: int = 6  # so many times that, of one stream, wait for the application
    reads_max: int = 64  # of these on their way at once, of all streams; each stream may have one
    ledger: LedgerLimits = field(default_factory=LedgerLimits)  # time-outs, among other things
