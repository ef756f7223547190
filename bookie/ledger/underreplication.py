"""Marks on ledgers that lack copies, for rereplication by BookKeeper's auto-recovery or by ours.

    <root>/underreplication/LAYOUT                     the layout in use, as protobuf text
    <root>/underreplication/ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>
                                                       the bookies that lack entries, since when

`hhhh` are the 16-bit pieces of the ledger id.  A new finding is added to an existing mark and never
replaces it.  The mark is written even if it already names the bookie: a rereplicator deletes the
version it began with, so a finding made meanwhile has to change the version.
"""

from collections.abc import Sequence
from contextlib import suppress

from google.protobuf import text_format

from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import (
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    VersionConflictError,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import (
    LedgerRereplicationLayoutFormat,
    UnderreplicatedLedgerFormat,
)

_LAYOUT = LedgerRereplicationLayoutFormat(type="BASIC", version=1)


def mark_path(paths: LedgerPaths, ledger_id: int) -> str:
    """Return the path of the mark, as BookKeeper has it."""
    digits = f"{ledger_id:016x}"
    pieces = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
    return f"{paths.underreplication}/ledgers/{pieces}/urL{ledger_id:010d}"


async def mark_under_replicated(
    store: MetadataStore,
    paths: LedgerPaths,
    ledger_id: int,
    missing: Sequence[BookieId],
    now_ms: int,
) -> None:
    """Mark the ledger: these bookies lack entries of it."""
    await _ensure_layout(store, paths)
    path = mark_path(paths, ledger_id)
    while True:
        record = await store.get(path)
        mark = UnderreplicatedLedgerFormat()
        if record is not None:
            # A mark that does not parse is of no use to any reader, and is replaced.
            with suppress(text_format.ParseError, UnicodeDecodeError):
                text_format.Parse(record.value.decode(), mark)
        mark.replica.extend(bookie for bookie in missing if bookie not in mark.replica)
        mark.ctime = now_ms
        value = text_format.MessageToString(mark).encode()
        try:
            if record is None:
                await store.create(path, value, make_parents=True)
            else:
                await store.set(path, value, record.stat.version)
        except (RecordExistsError, VersionConflictError, NoRecordError, OutcomeUnknownError):
            continue  # Read again: the ledger was marked or rereplicated meanwhile.
        return


async def _ensure_layout(store: MetadataStore, paths: LedgerPaths) -> None:
    path = f"{paths.underreplication}/LAYOUT"
    while await store.get(path) is None:
        try:
            value = text_format.MessageToString(_LAYOUT).encode()
            await store.create(path, value, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            continue
