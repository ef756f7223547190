"""The manifest of a batch: all shares in the order of the tasks, in a ledger of its own.

The manifest is JSON, cut into entries.  The record of the sink names the ledger and the SHA-256 of
the whole.  The share of a topic partition is a list of pieces: neighbouring entries of one staging
ledger.  The sequence id of an entry is `first` of the share plus the index of the entry in it.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from daybook.managed_ledger.protocol.sink import SinkRecord
from daybook.managed_ledger.sinks.errors import SinkCorruptError
from daybook.managed_ledger.sinks.staging import StagingEnd

ENTRY_BYTES = 1 << 20
_VERSION = 1


class StagedLedger(msgspec.Struct, array_like=True, frozen=True):
    attempt: str
    ledger_id: int


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Neighbouring entries of the staging ledger `ledgers[staged]`."""

    staged: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


class TopicShare(msgspec.Struct, frozen=True):
    first: int  # the sequence id of the first entry
    pieces: list[Piece]

    @property
    def entries(self) -> int:
        return sum(piece.entries for piece in self.pieces)


class Manifest(msgspec.Struct, rename="camel", frozen=True):
    version: int
    sink: str
    sink_id: str
    query_id: str
    batch_id: int
    ledgers: list[StagedLedger]
    shares: dict[str, TopicShare]

    @property
    def attempts(self) -> frozenset[str]:
        return frozenset(staged.attempt for staged in self.ledgers)

    @property
    def entries(self) -> dict[str, int]:
        """The number of entries of each topic partition."""
        return {topic: share.entries for topic, share in self.shares.items()}

    def pieces_from(
        self, topic: str, sequence: int
    ) -> Iterator[tuple[StagedLedger, int, int, int]]:
        """Yield what has the sequence ids from `sequence` on.

        Each item is (staging ledger, first entry, last entry, sequence id of the first).
        """
        share = self.shares[topic]
        following = share.first
        for piece in share.pieces:
            skipped = max(0, sequence - following)
            if skipped < piece.entries:
                first = piece.first + skipped
                yield self.ledgers[piece.staged], first, piece.last, following + skipped
            following += piece.entries


def make_manifest(
    sink: str,
    record: SinkRecord,
    batch_id: int,
    query_id: str,
    ends: Sequence[tuple[int, StagingEnd]],
) -> Manifest:
    """Return the manifest of (staging ledger, its end) in the order of the tasks."""
    pieces: dict[str, list[Piece]] = {}
    ledgers: list[StagedLedger] = []
    for index, (ledger_id, end) in enumerate(ends):
        ledgers.append(StagedLedger(end.attempt, ledger_id))
        for run in end.runs:
            pieces.setdefault(end.topics[run.topic], []).append(Piece(index, run.first, run.last))
    shares = {
        topic: TopicShare(record.first_sequence(topic), found)
        for topic, found in sorted(pieces.items())
    }
    return Manifest(_VERSION, sink, record.sink_id, query_id, batch_id, ledgers, shares)


def encode_manifest(manifest: Manifest) -> tuple[list[bytes], str]:
    """Return the entries of the manifest's ledger, and the checksum of the whole."""
    data = msgspec.json.encode(manifest)
    cuts = range(0, len(data), ENTRY_BYTES)
    return [data[at : at + ENTRY_BYTES] for at in cuts], sha256(data).hexdigest()


def decode_manifest(data: bytes, checksum: str, ledger_id: int) -> Manifest:
    """Raise SinkCorruptError."""
    if sha256(data).hexdigest() != checksum:
        raise SinkCorruptError(
            f"the manifest in ledger {ledger_id} does not match its checksum in the record of the"
            " sink: nothing of the batch is applied from it"
        )
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SinkCorruptError(
            f"the manifest in ledger {ledger_id} does not parse: {error}"
        ) from None
