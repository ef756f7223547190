"""The part of the Spark source that knows archives, for `read=archive+live`.

The driver puts the archive in front of the topic: offsets before the end of the archive come from
its files, and the others from the topic.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable
from dataclasses import replace

from daybook.clients.pipelines.archive.archived import Archived
from daybook.clients.pipelines.archive.belongs import check_belongs
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedPartition, Manifest
from daybook.clients.pipelines.archive.store import directory_of, load
from daybook.clients.spark.offsets import Partition
from daybook.clients.spark.topics import Held

_READS_MAX = 5  # a manifest is read so often while retention and the archiver move on
_REMEDY = "read the topic without read=archive+live, or name the archive of this topic"


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
