"""One run of `daybook pipeline archive`: bring an archive up to the end of its topic, in steps.

Each step reads a range of offsets of each partition with Spark, whose workers write the files, and
then replaces the manifest.  A run that dies between the two leaves files that no manifest names, so
the next run begins at the same offsets and loses nothing.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex

from pyspark.sql import SparkSession

from daybook.clients.pipelines.archive.belongs import (
    check_belongs,
    is_partitioned,
    known_created,
    known_instance,
)
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    ArchivedSchema,
    Manifest,
)
from daybook.clients.pipelines.archive.store import ArchiveStore, open_store
from daybook.clients.pipelines.archive.write import COLUMNS, RESULT, FileWriter
from daybook.clients.python.errors import TopicNotFoundError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import (
    ANONYMOUS,
    QueryCredentials,
    credential_options,
)
from daybook.clients.spark.offsets import Partition, full_topic_name, limit
from daybook.clients.spark.selection import parse_selection
from daybook.clients.spark.tls_options import spark_options
from daybook.clients.spark.topics import Held, TopicOffsets

_REMEDY = "archive into a new directory"


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    service_url: str
    topic: str
    directory: Path
    file_bytes: int
    rows_per_step: int
    tls: TlsOptions | None = None
    credentials: QueryCredentials = ANONYMOUS
    storage: Mapping[str, str] = field(default_factory=dict[str, str])
    """The options of the source about bookies and ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: its rows, and the offsets that it has archived, of all that it found."""

    rows: int
    done: int
    total: int


@dataclass(slots=True)
class StepFiles:
    """The files of a step by partition, and the versions of schemas that their rows name."""

    files: dict[int, list[ArchivedFile]] = field(default_factory=dict[int, list[ArchivedFile]])
    versions: set[bytes] = field(default_factory=set[bytes])

    @property
    def rows(self) -> int:
        return sum(each.rows for files in self.files.values() for each in files)


def archive(
    spark: SparkSession, job: ArchiveJob, report: Callable[[Progress], None] = lambda _: None
) -> Manifest:
    """Archive up to the end that the topic has now, and return the manifest.

    Raise ArchiveError if the archive belongs to another topic, or misses offsets that are gone.
    """
    topic = full_topic_name(job.topic, "topic")
    topics = TopicOffsets(
        job.service_url,
        parse_selection({"topic": job.topic}),
        ClientLimits(),
        job.tls,
        job.credentials,
    )
    try:
        with open_store(job.directory) as store:
            held = topics.held()  # after the manifest was read
            held.check_complete()
            manifest = begin(store.manifest, topic, held, str(job.directory))
            run = _Run(spark, job, topics, store, report)
            return run.up_to({p.number: each.next for p, each in held.partitions.items()}, manifest)
    finally:
        topics.close()


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        job: ArchiveJob,
        topics: TopicOffsets,
        store: ArchiveStore,
        report: Callable[[Progress], None],
    ) -> None:
        self._spark = spark
        self._job = job
        self._topics = topics
        self._store = store
        self._report = report

    def up_to(self, end: Mapping[int, int], manifest: Manifest) -> Manifest:
        """Archive up to an end of each partition, and return the manifest."""
        if self._store.manifest is None:
            # Before the first file: files without a manifest are those of a manifest that was lost.
            manifest = self._store.replace(manifest)
        total = sum(end[number] - part.end for number, part in manifest.partitions.items())
        rows, step_rows = 0, self._job.rows_per_step
        while True:
            start = {number: part.end for number, part in manifest.partitions.items()}
            behind = sum(end[number] - start[number] for number in end)
            self._report(Progress(rows, total - behind, total))
            if not behind:
                break
            until = limit_numbers(start, end, step_rows)
            found = _step(self._spark, self._job, manifest.id, start, until)
            if not found.files:
                # Offsets without rows are the first chunks of a message: look further for its last.
                if until == end:
                    break
                step_rows *= 2
                continue
            grown = with_step(with_schemas(manifest, found.versions, self._schema), found.files)
            self._check_still_belongs(grown)
            manifest = self._store.replace(grown)
            rows += found.rows
        self._store.clean()
        return self._store.manifest or manifest

    def _check_still_belongs(self, grown: Manifest) -> None:
        """Raise an error unless the topic is the archived one after all its parts were read.

        A topic that was deleted and made anew meanwhile has given other messages for the offsets of
        the step, or other definitions for the versions of its schemas.
        """
        held = self._topics.held()
        held.check_complete()
        check_belongs(grown, held, str(self._job.directory), _REMEDY)

    def _schema(self, version: bytes) -> ArchivedSchema | None:
        try:
            found = self._topics.client.schema(self._job.topic, version).info
        except TopicNotFoundError:
            return None  # It was deleted before its messages were archived.
        return ArchivedSchema(found.type, found.name, found.data, dict(found.properties))


def begin(manifest: Manifest | None, topic: str, held: Held, directory: str) -> Manifest:
    """Return the manifest from which a run goes on; partitions that are new begin here.

    Raise ArchiveError, with the remedy, for an archive that does not fit the topic.
    """
    if manifest is None:
        manifest = Manifest(token_hex(16), topic, is_partitioned(held), known_instance(held))
    check_belongs(manifest, held, directory, _REMEDY)
    partitions = dict(manifest.partitions)
    for partition, retained in sorted(held.partitions.items()):
        known = partitions.get(partition.number)
        if known is None:
            created = known_created(held, partition.number)
            partitions[partition.number] = ArchivedPartition(created, retained.first)
        elif known.end < retained.first:
            raise ArchiveError(
                f"{partition}: the archive ends at offset {known.end}, and the topic retains"
                f" nothing before offset {retained.first}: {_REMEDY}, and set a longer retention"
            )
    return replace(manifest, partitions=partitions)


def with_schemas(
    manifest: Manifest,
    versions: Iterable[bytes],
    ask: Callable[[bytes], ArchivedSchema | None],
) -> Manifest:
    """Return the manifest with the definitions of all these versions.

    A version is not asked for again, as its definition never changes.
    """
    missing = sorted(set(versions) - set(manifest.schemas))
    if not missing:
        return manifest
    found = {version: ask(version) for version in missing}
    return replace(manifest, schemas={**manifest.schemas, **found})


def limit_numbers(start: Mapping[int, int], end: Mapping[int, int], rows: int) -> dict[int, int]:
    """Return an end with at most `rows` offsets in all."""
    named = limit(
        {Partition("", number): each for number, each in start.items()},
        {Partition("", number): each for number, each in end.items()},
        rows,
    )
    return {partition.number: each for partition, each in named.items()}


def _step(
    spark: SparkSession,
    job: ArchiveJob,
    archive_id: str,
    start: Mapping[int, int],
    until: Mapping[int, int],
) -> StepFiles:
    """Write the files of a step, and return them with their own offsets."""
    frame = (
        spark.read.format("daybook")
        .options(
            **{
                **job.storage,
                "service.url": job.service_url,
                **spark_options(job.tls),
                **credential_options(job.credentials),
                "topic": job.topic,
                "columns": ",".join(COLUMNS),
                "startingOffsets": json.dumps({str(n): each for n, each in start.items()}),
                "endingOffsets": json.dumps({str(n): each for n, each in until.items()}),
            }
        )
        .load()
        .mapInArrow(FileWriter(ArchiveFiles(job.directory), archive_id, job.file_bytes).run, RESULT)
    )
    found = StepFiles()
    for row in frame.collect():
        file = ArchivedFile(
            row["path"],
            row["first"],
            row["next"],
            row["rows"],
            row["bytes"],
            row["day"],
            row["earliest"],
            row["latest"],
        )
        found.files.setdefault(row["partition"], []).append(file)
        found.versions.update(map(bytes, row["versions"]))
    return found


def with_step(manifest: Manifest, found: Mapping[int, Sequence[ArchivedFile]]) -> Manifest:
    """Return the manifest with the files of a step.

    Offsets without rows, before the first row of a file, belong to this file: they are the first
    chunks of its messages.  Offsets behind the last row are left to the next step.
    """
    for number, files in found.items():
        expected = manifest.partitions[number].end
        ordered: list[ArchivedFile] = []
        for each in sorted(files, key=lambda each: each.first):
            if each.first < expected:
                raise ArchiveError(f"{each.path} has offsets that another file has: run it again")
            ordered.append(replace(each, first=expected))
            expected = each.next
        manifest = manifest.with_files(number, ordered)
    return manifest
