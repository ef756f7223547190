"""One run of `daybook pipeline replay`: an archive becomes the messages of a topic, exactly once.

Each step is a batch of a sink (`docs/sinks.md`): Spark's workers stage the rows of some files, and
the driver commits all of them or none.  The sink belongs to this archive and this topic, and its
batches are counted by the brokers.  A step goes like this:

1. The last batch is rolled forward, so nothing that was committed is still on its way.
2. The last entry of each partition says how far the replay is.
3. The rows behind that are staged, and committed as the next batch.

The order of 1 and 2 matters.  If another run commits a batch in between, the batch of this run has
the same number, so the brokers throw its staging away.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import trio
from pyspark.sql import SparkSession

from daybook.clients.pipelines.archive.belongs import is_partitioned, known_created, known_instance
from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile, ArchivedSchema, Manifest
from daybook.clients.pipelines.archive.replay_plan import (
    MARK,
    Mark,
    Piece,
    Written,
    check_moved,
    check_partitions,
    next_pieces,
    positions,
    rows_left,
)
from daybook.clients.pipelines.archive.replay_task import RESULT, ReplayTask
from daybook.clients.pipelines.archive.store import load
from daybook.clients.python import blocking
from daybook.clients.python.errors import NotFoundError, TopicNotFoundError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.message_id import Offset
from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.clients.python.sink_requests import Batch, Share, SinkRequests
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import ANONYMOUS, QueryCredentials
from daybook.clients.spark.offsets import full_topic_name
from daybook.clients.spark.selection import parse_selection
from daybook.clients.spark.topics import Held, TopicOffsets
from daybook.wire.batch import is_batch, parse_metadata, split_broker_metadata
from daybook.wire.compression import CompressionType
from daybook.wire.errors import WireError

_COMMIT_S = 600.0  # A batch of millions of messages is applied in that time.
_READ_S = 60.0
_VERSION_BYTES = 8
_NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class ReplayJob:
    service_url: str
    admin_url: str
    directory: Path
    topic: str
    rows_per_step: int
    compression: CompressionType = CompressionType.NONE
    with_schemas: bool = True
    tls: TlsOptions | None = None
    credentials: QueryCredentials = ANONYMOUS


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    """How much of a partition of the archive the topic has."""

    begin: int
    next: int  # the archive's offset behind the last message
    end: int
    messages: int


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    rows: int
    done: int
    total: int


class _Definition(Schema[bytes]):
    """A schema as it is stored.  Values are its encoded bytes."""

    def __init__(self, found: ArchivedSchema) -> None:
        self.info = SchemaInfo(found.type, found.data, found.name, found.properties)

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


def replay(
    spark: SparkSession,
    job: ReplayJob,
    report: Callable[[ReplayProgress], None] = lambda _: None,
) -> dict[int, ReplayedPartition]:
    """Write what the topic lacks of the archive, and return how much it has.

    Raise ArchiveError if the topic holds something else.
    """
    files = ArchiveFiles(job.directory)
    manifest = load(files)
    if manifest is None:
        raise ArchiveError(
            f"{job.directory} has no archive: make one with `daybook pipeline archive`"
        )
    topic = full_topic_name(job.topic, "topic")
    topics = TopicOffsets(
        job.service_url,
        parse_selection({"topic": job.topic}),
        ClientLimits(),
        job.tls,
        job.credentials,
    )
    try:
        _create(job, topics.client, manifest, topic)
        return _Replay(spark, job, files, manifest, topics, topic).run(report)
    finally:
        topics.close()


def _create(job: ReplayJob, client: blocking.Client, manifest: Manifest, topic: str) -> None:
    """Create the topic as the archived one was, if it does not exist."""
    try:
        client.partitions(topic, create=False)
    except TopicNotFoundError:
        count = len(manifest.partitions) if manifest.partitioned else 0
        who = job.credentials
        with blocking.connect_admin(
            job.admin_url, tls=job.tls, token=who.token, basic=who.basic
        ) as admin:
            admin.create_topic(topic, partitions=count)


class _Replay:
    def __init__(
        self,
        spark: SparkSession,
        job: ReplayJob,
        files: ArchiveFiles,
        manifest: Manifest,
        topics: TopicOffsets,
        topic: str,
    ) -> None:
        self._spark = spark
        self._job = job
        self._files = files
        self._manifest = manifest
        self._topics = topics
        self._topic = topic
        who = job.credentials
        self._requests = SinkRequests(job.admin_url, tls=job.tls, token=who.token, basic=who.basic)

    def run(self, report: Callable[[ReplayProgress], None]) -> dict[int, ReplayedPartition]:
        held = self._held()
        sink = sink_name(self._manifest, self._topic, held)
        partitions = self._manifest.partitions
        total = rows_left(self._manifest, {n: part.begin for n, part in partitions.items()})
        rows = 0
        versions: Mapping[bytes, bytes] | None = None
        before: tuple[int, Mapping[int, int]] | None = None
        while True:
            last = trio.run(self._rolled_forward, sink)
            held = self._held()
            if sink_name(self._manifest, self._topic, held) != sink:
                raise ArchiveError(
                    f"{self._topic} was deleted and created again meanwhile: run the replay again"
                )
            found = self._written(held)
            if last == _NO_BATCH and any(each.messages for each in found.values()):
                raise ArchiveError(
                    f"{self._topic} holds messages, and no replay of this archive has written to"
                    " it: replay into a topic that holds none"
                )
            start = positions(self._manifest, self._topic, found, self._rows_before)
            if before is not None and before[0] < last:
                check_moved(self._topic, last, before[1], start)
            before = (last, start)
            report(ReplayProgress(rows, total - rows_left(self._manifest, start), total))
            pieces = next_pieces(self._manifest, start, self._job.rows_per_step)
            if not pieces:
                return {
                    number: ReplayedPartition(
                        part.begin, start[number], part.end, found[number].messages
                    )
                    for number, part in sorted(self._manifest.partitions.items())
                }
            if versions is None and self._job.with_schemas:
                versions = self._registered(held)
            rows += self._write(sink, last + 1, pieces, held, versions)

    def _held(self) -> Held:
        held = self._topics.held()
        held.check_complete()
        numbers = [partition.number for partition in held.partitions]
        check_partitions(self._manifest, self._topic, numbers)
        return held

    async def _rolled_forward(self, sink: str) -> int:
        """Return the number of the last batch, which is in the topic as a whole."""
        try:
            state = await self._requests.roll_forward(
                sink, timeout_s=_COMMIT_S, topics=[self._topic]
            )
        except NotFoundError:
            return _NO_BATCH
        return state.batch_id

    # -- how far the topic is

    def _written(self, held: Held) -> dict[int, Written]:
        return {
            partition.number: Written(
                each.next, self._mark(held.stored_in[partition], each.first, each.next)
            )
            for partition, each in held.partitions.items()
        }

    def _mark(self, topic: str, first: int, following: int) -> Mark | None:
        """Return the mark of the last entry of a partition; None if it has none."""
        if not following:
            return None
        if first >= following:
            raise ArchiveError(
                f"{topic} retains none of its {following} messages, so it is unknown how far the"
                " replay is: set a retention for the topic, and replay into a new one"
            )
        client = self._topics.client
        start = Offset(following - 1)
        with client.create_reader(topic, start=start, receiver_queue_size=1) as reader:
            entries = reader.receive_entries(_READ_S)
        # The first one has the offset; others may have come since the partition was asked.
        return mark_of(entries[0].data) if entries else None

    def _rows_before(self, number: int, file: ArchivedFile, offset: int) -> int:
        with open_file(NamedFile(self._files, self._manifest.id, number, file)) as opened:
            return opened.rows_before(offset)

    # -- schemas

    def _registered(self, held: Held) -> dict[bytes, bytes]:
        """Give the topic the schemas of the archive; return its versions by the archive's."""
        stored_in = held.stored_in[min(held.stored_in)]
        found: dict[bytes, bytes] = {}
        for version, schema in sorted(self._manifest.schemas.items()):
            if schema is None:
                raise ArchiveError(
                    f"messages of the archive name the version {version.hex()} of the schema, whose"
                    " definition was deleted before they were archived: replay with"
                    " --without-schemas"
                )
            client = self._topics.client
            with client.create_producer(stored_in, schema=_Definition(schema)) as producer:
                number = producer.schema_version
            if number is None:
                raise ArchiveError(f"the brokers gave no version to the schema of {self._topic}")
            found[version] = number.to_bytes(_VERSION_BYTES, "big")
        return found

    # -- one step

    def _write(
        self,
        sink: str,
        batch_id: int,
        pieces: list[Piece],
        held: Held,
        versions: Mapping[bytes, bytes] | None,
    ) -> int:
        """Write pieces as one batch, and return its rows; 0 if another run was faster."""
        count = len(held.partitions) if is_partitioned(held) else 0
        batch = Batch(self._manifest.id, batch_id, {self._topic: count})
        task = ReplayTask(
            self._files,
            pieces,
            {partition.number: stored for partition, stored in held.stored_in.items()},
            self._manifest.id,
            versions,
            self._job.admin_url,
            sink,
            batch,
            self._job.compression,
            self._job.tls,
            self._job.credentials,
        )
        frame = self._spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task.run, RESULT)
        shares: dict[int, Share] = {}
        for row in frame.collect():
            shares[row["piece"]] = Share(
                row["attempt"],
                row["ledger"],
                row["rows"],
                int(row["hash"]),
                row["entries"],
                row["bytes"],
            )
        assert sorted(shares) == list(range(len(pieces))), "each piece was staged"
        ordered = [shares[index] for index in range(len(pieces))]
        outcome = trio.run(self._commit, sink, batch, ordered)
        return sum(each.rows for each in ordered) if outcome in ("committed", "done") else 0

    async def _commit(self, sink: str, batch: Batch, shares: list[Share]) -> str:
        done = await self._requests.commit(
            sink, batch, shares, checkpoint=f"archive {batch.query_id}", timeout_s=_COMMIT_S
        )
        return done.outcome


def sink_name(manifest: Manifest, topic: str, held: Held) -> str:
    """Return the name of the sink of this archive and this topic, which a new topic changes."""
    instance = known_instance(held)
    created = [known_created(held, number) for number in sorted(manifest.partitions)]
    digest = sha256(repr((manifest.id, instance, topic, created)).encode()).hexdigest()
    return f"replay-{digest[:32]}"


def mark_of(data: bytes) -> Mark | None:
    """Return the mark of an entry, as brokers store it; None if it has none."""
    try:
        metadata, _ = parse_metadata(split_broker_metadata(memoryview(data))[2])
    except WireError:
        return None
    if not is_batch(metadata):
        return None
    texts = [pair.value for pair in metadata.properties if pair.key == MARK]
    return Mark.parse(texts[-1]) if texts else None
