"""Marks ledgers that lack copies, for whoever restores them (BookKeeper's auto-recovery, or ours).

    <root>/underreplication/LAYOUT                     which layout this is, as protobuf text
    <root>/underreplication/ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>
                                                       which bookies lack entries, since when

`hhhh` are the sixteen-bit pieces of the id.  A mark that is there already is added to, never
replaced, and written in any case: whoever works on it removes the version that it began with, so
that one has to change when the same is found again meanwhile.
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
    """Say that these bookies lack entries of the ledger."""
    await _ensure_layout(store, paths)
    path = mark_path(paths, ledger_id)
    while True:
        record = await store.get(path)
        mark = UnderreplicatedLedgerFormat()
        if record is not None:
            # One that does not parse is of no use to anybody, and is written anew.
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
            continue  # Look again: somebody else marks it, or has just mended it.
        return


async def _ensure_layout(store: MetadataStore, paths: LedgerPaths) -> None:
    path = f"{paths.underreplication}/LAYOUT"
    while await store.get(path) is None:
        try:
            value = text_format.MessageToString(_LAYOUT).encode()
            await store.create(path, value, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            continue
