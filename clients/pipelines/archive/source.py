"""The part of the Spark source that knows archives, for `read=archive+live`.

The driver puts the archive in front of the topic: offsets before the end of the archive come from
its files, and the others from the topic.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from daybook.clients.pipelines.archive.belongs import check_belongs
from daybook.clients.pipelines.archive.checked import NamedFile
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedPartition, Manifest
from daybook.clients.pipelines.archive.store import directory_of, load
from daybook.clients.pipelines.archive.times import first_published
from daybook.clients.spark.offsets import OffsetRange, Partition, Retained, Stored
from daybook.clients.spark.topics import Held

_READS_MAX = 5  # a manifest is read so often while retention and the archiver move on
_REMEDY = "read the topic without read=archive+live, or name the archive of this topic"


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


def held_with_archive(ask: Callable[[], Held], directory: str) -> Held:
    """Return the offsets of a topic and its archive together.

    `ask` asks the brokers.  Raise ArchiveError if the archive is not one of this topic.
    """
    files = ArchiveFiles(directory_of(directory))
    manifest = _load(files)
    for _ in range(_READS_MAX):
        # In this order, as the archive never passes the end that the topic has now.
        held = ask()
        if not held.partitions:
            return held  # Nothing is there to be read, and `missing` tells why.
        check_belongs(manifest, held, str(files.directory), _REMEDY)
        newer = _load(files)
        # The archiver, and then retention, may have moved on since the manifest was read.
        if newer.generation == manifest.generation or not _has_gap(manifest, held):
            break
        manifest = newer
    return _together(manifest, held, files)


def _load(files: ArchiveFiles) -> Manifest:
    manifest = load(files)
    if manifest is None:
        raise ArchiveError(
            f"{files.directory} has no archive: make one with `daybook pipeline archive`"
        )
    return manifest


def _has_gap(manifest: Manifest, held: Held) -> bool:
    return any(
        manifest.partitions[partition.number].end < live.first
        for partition, live in held.partitions.items()
        if partition.number in manifest.partitions
    )


def _together(manifest: Manifest, held: Held, files: ArchiveFiles) -> Held:
    partitions: dict[Partition, ArchivedPartition] = {}
    together = dict(held.partitions)
    for partition, live in held.partitions.items():
        archived = manifest.partitions.get(partition.number)
        if archived is not None:
            partitions[partition] = archived
            together[partition] = replace(live, first=min(archived.begin, live.first))
    found = Archived(files, manifest.id, partitions, held.partitions)
    return replace(held, partitions=together, archived=found)
