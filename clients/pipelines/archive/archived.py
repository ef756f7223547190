"""An archive in front of a topic, as the Spark source reads both."""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from daybook.clients.pipelines.archive.checked import NamedFile
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedPartition
from daybook.clients.pipelines.archive.times import first_published
from daybook.clients.spark.offsets import OffsetRange, Partition, Retained, Stored


@dataclass(frozen=True, slots=True)
class Archived:
    """An archive in front of a topic: its files, and the offsets that the topic itself holds."""

    files: ArchiveFiles
    id: str
    partitions: Mapping[Partition, ArchivedPartition]
    live: Mapping[Partition, Retained]

    def cut(self, part: OffsetRange) -> tuple[list[tuple[OffsetRange, tuple[NamedFile, ...]]], str]:
        """Return the parts of a range, each with the files that hold it (none: the topic does).

        The text names the offsets that neither side holds, and is empty if there are none.
        """
        partition = Partition(part.topic, part.partition)
        archived = self.partitions.get(partition)
        if archived is None:
            return [(part, ())], ""
        found: list[tuple[OffsetRange, tuple[NamedFile, ...]]] = []
        until = min(part.end, archived.end)
        for each in archived.overlapping(part.start, until):
            low, high = max(part.start, each.first), min(until, each.next)
            named = NamedFile(self.files, self.id, partition.number, each)
            found.append((replace(part, start=low, end=high), (named,)))
        first, gone = self.live[partition].first, list[str]()
        before = (part.start, min(part.end, archived.begin))
        behind = (max(part.start, archived.end), part.end)
        for low, high in (before, behind):
            if max(low, first) < high:
                found.append((replace(part, start=max(low, first), end=high), ()))
            if low < min(first, high):
                gone.append(f"{low} to {min(first, high)}")
        lost = (
            f"{partition}: neither the archive {self.files.directory}, which has the offsets"
            f" {archived.begin} to {archived.end}, nor the topic, which begins at offset {first},"
            f" holds the offsets {' and '.join(gone)}"
            if gone
            else ""
        )
        return found, lost

    def offset_at(
        self,
        partition: Partition,
        time_ms: int,
        ask: Callable[[int], int | None],
        *,
        is_start: bool,
    ) -> int | None:
        """Return the first offset that was published at a time or later; None if none was.

        `ask` asks the topic itself for that.  If offsets that neither side holds may have been
        published then, a query begins before them, so that its plan names them.
        """
        archived = self.partitions.get(partition)
        if archived is None:
            return ask(time_ms)
        first = self.live[partition].first
        found = first_published(self.files, self.id, partition.number, archived, time_ms)
        if found is not None and first >= archived.begin:
            return found
        asked = ask(time_ms)
        if found is not None:  # The topic has offsets before the archive.
            return found if asked is None else min(found, asked)
        if is_start and archived.end < first and asked == ask(0):
            return archived.end
        return asked

    def sizes(self, partition: Partition) -> tuple[Stored, ...]:
        """Return the sizes of the files of a partition, in order."""
        archived = self.partitions.get(partition)
        files = () if archived is None else archived.files
        return tuple(Stored(each.first, each.next, each.bytes) for each in files)
