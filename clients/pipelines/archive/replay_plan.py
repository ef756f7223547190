"""Which part of an archive a replay writes next, and whether a topic holds nothing else.  Pure.

Each entry that a replay writes carries a mark: the id of the archive, and the archive's offset
behind its last message.  So the last entry of a partition says how far the replay is, and the
number of messages before it says if somebody else has written, too.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.manifest import ArchivedFile, Manifest

MARK = "daybook.replay"
"""The property of an entry with its mark.  Clients do not see it: messages have their own."""
PIECES_MAX = 64  # a broker takes so many staging attempts at a time


@dataclass(frozen=True, slots=True)
class Mark:
    archive: str
    next: int

    def __str__(self) -> str:
        return f"{self.archive}:{self.next}"

    @classmethod
    def parse(cls, text: str) -> "Mark | None":
        """Return the mark that a text is; None if it is none."""
        archive, _, number = text.partition(":")
        if not (archive and number.isascii() and number.isdigit() and len(number) < 20):
            return None
        return cls(archive, int(number))


@dataclass(frozen=True, slots=True)
class Written:
    """A partition of the topic as it is found: its messages since its creation, and the last mark.

    `mark` is None if the last entry has none, or if there is no entry.
    """

    messages: int
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a file from an offset on."""

    partition: int
    file: ArchivedFile
    start: int

    @property
    def rows_most(self) -> int:
        return min(self.file.rows, self.file.next - self.start)


def check_partitions(manifest: Manifest, topic: str, numbers: Collection[int]) -> None:
    """Raise ArchiveError unless the topic has the partitions of the archive."""
    if set(numbers) != set(manifest.partitions):
        raise ArchiveError(
            f"{topic} has {len(numbers)} partitions, and the archive"
            f" {len(manifest.partitions)}: replay into a topic with as many, or into one that does"
            " not exist"
        )


def positions(
    manifest: Manifest,
    topic: str,
    found: Mapping[int, Written],
    rows_before: Callable[[int, ArchivedFile, int], int],
) -> dict[int, int]:
    """Return the archive's offset at which each partition goes on.

    `rows_before` counts the rows of a file of a partition before an offset.  Raise ArchiveError if
    the topic holds something else than a beginning of this archive.
    """
    return {
        number: _position(manifest, f"{topic} partition {number}", number, written, rows_before)
        for number, written in sorted(found.items())
    }


def _position(
    manifest: Manifest,
    name: str,
    number: int,
    written: Written,
    rows_before: Callable[[int, ArchivedFile, int], int],
) -> int:
    part, mark = manifest.partitions[number], written.mark
    if not written.messages:
        return part.begin
    if mark is None or mark.archive != manifest.id:
        raise ArchiveError(
            f"{name} ends with a message that is not of this replay: replay into a topic that holds"
            " no messages"
        )
    if not part.begin <= mark.next <= part.end:
        raise ArchiveError(
            f"{name} has the archive up to offset {mark.next}, and this copy of it has the offsets"
            f" {part.begin} to {part.end}: use the newest copy of the archive"
        )
    rows = sum(
        each.rows if each.next <= mark.next else rows_before(number, each, mark.next)
        for each in part.overlapping(part.begin, mark.next)
    )
    if rows != written.messages:
        raise ArchiveError(
            f"{name} has {written.messages} messages, and the replay has written {rows} of them:"
            " another producer writes to it, so replay into another topic"
        )
    return mark.next


def check_moved(
    topic: str,
    batch_id: int,
    before: Mapping[int, int],
    now: Mapping[int, int],
) -> None:
    """Raise ArchiveError if the positions after a batch are those before it.

    Such a batch would be written again and again, without an end.
    """
    if before == now:
        offsets = ", ".join(str(each) for _, each in sorted(now.items()))
        raise ArchiveError(
            f"the batch {batch_id} of the replay into {topic} has added no message, and the archive"
            f" has messages behind the offsets {offsets}: restore the files of the archive from a"
            " copy"
        )


def next_pieces(manifest: Manifest, start: Mapping[int, int], rows: int) -> list[Piece]:
    """Return the next pieces, of about so many rows in all; none at the end of the archive.

    They are in the order of partitions and offsets.  Partitions take turns, file by file, so that
    they stay about level.
    """
    left = {
        number: [
            Piece(number, each, max(each.first, start[number]))
            for each in part.overlapping(start[number], part.end)
        ]
        for number, part in sorted(manifest.partitions.items())
    }
    found: list[Piece] = []
    taken = 0
    while any(left.values()) and len(found) < PIECES_MAX:
        for pieces in left.values():
            # At least one piece is taken, however large it is.
            if pieces and len(found) < PIECES_MAX and (not found or taken < rows):
                piece = pieces.pop(0)
                taken += piece.rows_most
                found.append(piece)
        if taken >= rows:
            break
    return sorted(found, key=lambda each: (each.partition, each.start))


def rows_left(manifest: Manifest, start: Mapping[int, int]) -> int:
    """Return how many offsets of the archive lie behind these."""
    return sum(part.end - start[number] for number, part in manifest.partitions.items())
