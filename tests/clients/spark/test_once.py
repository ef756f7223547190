"""Exactly-once writes on simulated brokers: tasks stage, the driver commits, Spark repeats."""

import pickle
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StringType, StructField, StructType

from daybook.clients.pipelines.run import reason_of
from daybook.clients.python.errors import (
    BrokerError,
    ConflictError,
    ConnectionLostError,
    NotAllowedError,
)
from daybook.clients.python.sink_requests import (
    Batch,
    Committed,
    NotAppliedError,
    Share,
    SinkRequests,
    SinkState,
    StagingAttempt,
)
from daybook.clients.spark import sink as sink_module
from daybook.clients.spark import stage as stage_module
from daybook.clients.spark.commit import Staged, abort, commit, commit_staged, staged
from daybook.clients.spark.row_columns import RowColumns
from daybook.clients.spark.rows import RowEncoder
from daybook.clients.spark.sink import OnceBatchWriter, OnceStreamWriter
from daybook.clients.spark.sink_options import OnceOptions, parse_sink_options
from daybook.clients.spark.source import DaybookDataSource
from daybook.clients.spark.stage import PlannedTopic, Staging, rotated
from daybook.clients.spark.write_plan import plan_write
from daybook.wire.compression import CompressionType
from tests.broker.sinks.world import CHECKPOINT, PARTITIONS, SINK, TOPIC, World, simulated

OPTIONS = {
    "service.url": "pulsar://x",
    "admin.url": "http://x:1",
    "topic": "t",
    "semantics": "exactly-once",
}
STREAM = {**OPTIONS, "checkpointlocation": "/c"}
FRAME = StructType([StructField("value", StringType())])
ONCE = OnceOptions("http://x:1", 60.0, CHECKPOINT, None)
PLANNED = PlannedTopic(TOPIC, PARTITIONS)
COLUMNS = RowColumns(0, key=1)


def requests(world: World) -> SinkRequests:
    network = world.cluster.network.of("driver")
    return SinkRequests("http://broker-1:8080,broker-2:8080", network=network, timeout_s=10.0)


def encoder(task: int = 0) -> RowEncoder:
    made = RowEncoder(COLUMNS, TOPIC, task, hashes_rows=True)
    made.add_topic(TOPIC, PARTITIONS)
    return made


def arrow(texts: Sequence[str]) -> pa.RecordBatch:
    values = pa.array([text.encode() for text in texts], pa.binary())
    keys = pa.array([text[:1] for text in texts], pa.string())
    return pa.RecordBatch.from_arrays([values, keys], names=["value", "key"])


async def stage(
    world: World,
    texts: Sequence[str],
    *,
    task: int = 0,
    batch_id: int = 0,
    topic: PlannedTopic = PLANNED,
) -> Staged:
    """Run a task whose rows come in Arrow batches of two."""
    batch = Batch("query", batch_id, {topic.name: topic.partitions})
    left = [arrow(texts[at : at + 2]) for at in range(0, len(texts), 2)]

    async def next_rows() -> pa.RecordBatch | None:
        return left.pop(0) if left else None

    staging = Staging(requests(world), SINK, batch, topic, CompressionType.ZSTD)
    return Staged(task, SINK, batch, await staging.run(encoder(task), next_rows))


async def stored(world: World) -> list[str]:
    """Return the values in the topic, one partition after the other."""
    return [text for index in range(PARTITIONS) for text in await world.read(index)]


TEXTS = [f"{letter}{number}" for number in range(3) for letter in "abcdef"]


def test_rows_are_in_the_topic_after_the_commit_and_not_before() -> None:
    async def story(world: World) -> None:
        tasks = [await stage(world, TEXTS[:10]), await stage(world, TEXTS[10:], task=1)]
        tasks.append(await stage(world, [], task=2))
        assert tasks[2].share is None
        assert await stored(world) == []
        await commit(requests(world), ONCE, tasks, 0)
        found = await stored(world)
        assert sorted(found) == sorted(TEXTS)
        for letter in "abcdef":  # One key is in one partition, in the order of the tasks.
            assert [text for text in found if text[0] == letter] == [
                f"{letter}{number}" for number in range(3)
            ]
        await commit(requests(world), ONCE, tasks, 0)  # The answer was lost: Spark asks again.
        assert await stored(world) == found
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def test_a_repeated_micro_batch_leaves_the_topic_as_it_is() -> None:
    async def story(world: World) -> None:
        await commit(requests(world), ONCE, [await stage(world, TEXTS)], 0)
        found = await stored(world)
        # The rows come in another order, and from other tasks.
        again = [await stage(world, TEXTS[9:], task=1), await stage(world, TEXTS[8::-1])]
        await commit(requests(world), ONCE, staged(again), 0)
        assert await stored(world) == found
        fewer = [await stage(world, TEXTS[1:])]
        with pytest.raises(ConflictError, match="rows"):
            await commit(requests(world), ONCE, fewer, 0)
        await abort(requests(world), ONCE, fewer)
        await commit(requests(world), ONCE, [await stage(world, ["g"], batch_id=1)], 1)
        assert sorted(await stored(world)) == sorted([*TEXTS, "g"])
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def test_an_abort_after_a_commit_changes_nothing_and_before_one_it_is_final() -> None:
    async def story(world: World) -> None:
        first = [await stage(world, TEXTS)]
        await commit(requests(world), ONCE, first, 0)
        found = await stored(world)
        await abort(requests(world), ONCE, first)  # Spark: the answer of the commit was lost.
        assert await stored(world) == found
        second = [await stage(world, ["x"], batch_id=1)]
        await abort(requests(world), ONCE, second)
        with pytest.raises(ConflictError):
            await commit(requests(world), ONCE, second, 1)
        await commit(requests(world), ONCE, [await stage(world, ["y"], batch_id=1)], 1)
        assert sorted(await stored(world)) == sorted([*found, "y"])

    simulated(story)


def test_an_earlier_batch_is_applied_first() -> None:
    async def story(world: World) -> None:
        first = [await stage(world, ["a"])]
        # The driver died behind its commit.
        await requests(world).commit(SINK, first[0].batch, [first[0].share], checkpoint=CHECKPOINT)
        await commit(requests(world), ONCE, [await stage(world, ["a2"], batch_id=1)], 1)
        assert [text for text in await stored(world) if text[0] == "a"] == ["a", "a2"]

    simulated(story)


def test_another_number_of_partitions_is_refused() -> None:
    async def story(world: World) -> None:
        grown = replace(PLANNED, partitions=PARTITIONS + 1)
        tasks = [await stage(world, ["a"]), await stage(world, ["b"], task=1, topic=grown)]
        with pytest.raises(RuntimeError, match="run the batch again"):
            await commit(requests(world), ONCE, tasks, 0)
        assert await stored(world) == []

    simulated(story)


def test_another_query_or_checkpoint_is_refused() -> None:
    async def story(world: World) -> None:
        await commit(requests(world), ONCE, [await stage(world, ["a"])], 0)
        copied = replace(ONCE, checkpoint="/copy")
        with pytest.raises(ConflictError, match="the sink belongs to the checkpoint"):
            await commit(requests(world), copied, [await stage(world, ["b"], batch_id=1)], 1)
        assert await stored(world) == ["a"]

    simulated(story)


def test_a_task_that_fails_gives_its_attempt_up() -> None:
    async def story(world: World) -> None:
        left = [arrow(["x" * (600 << 10)] * 7)]  # So much that it is staged at once.

        async def next_rows() -> pa.RecordBatch | None:
            if left:
                return left.pop()
            raise ValueError("Spark's rows end")

        batch = Batch("query", 0, {TOPIC: PARTITIONS})
        staging = Staging(requests(world), SINK, batch, PLANNED, CompressionType.NONE)
        with pytest.raises(ValueError, match="rows end"):
            await staging.run(encoder(), next_rows)
        attempt = staging._attempt
        assert attempt is not None
        with pytest.raises(BrokerError):
            await attempt.close(rows=1, hash_=0)

    simulated(story)


# -- with doubles


class SlowAttempt:
    """An attempt whose bodies arrive when the test says so, or fail."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.arrived = 0
        self.ends: list[str] = []
        self.error: BrokerError | None = None
        self._may = trio.Semaphore(0)

    async def append(self, topic: str, entries: Sequence[bytes]) -> None:
        assert self.arrived == len(self.begun), "two bodies are under way"
        self.begun.append((topic, sum(map(len, entries))))
        await self._may.acquire()
        if self.error is not None:
            raise self.error
        self.arrived += 1

    def let_one_arrive(self) -> None:
        self._may.release()

    async def close(self, *, rows: int, hash_: int) -> Share:
        assert self.arrived == len(self.begun), "the last body may be missing"
        self.ends.append("closed")
        return Share("a", 1, rows, hash_, self.arrived, 1)

    async def give_up(self) -> None:
        self.ends.append("given up")

    def disconnect(self) -> None:
        self.ends.append("disconnected")


class SlowStaging:
    """A task whose brokers are slow; its rows make a body each."""

    def __init__(self, bodies: int, *, rows_fail: bool = False) -> None:
        self.attempt = SlowAttempt()
        self.left = bodies
        self._rows_fail = rows_fail
        attempt: Any = self.attempt

        class Begun(Requests):
            async def begin(self, name: str, batch: Batch) -> StagingAttempt:
                return attempt  # type: ignore[no-any-return]

        batch = Batch("q", 0, {"t": 0})
        planned = PlannedTopic("persistent://public/default/t", 0)
        self._staging = Staging(Begun(), SINK, batch, planned, CompressionType.NONE)

    async def run(self) -> Share | None:
        made = RowEncoder(RowColumns(0), "persistent://public/default/t", 0, hashes_rows=True)
        made.add_topic("persistent://public/default/t", 0)
        return await self._staging.run(made, self._next_rows)

    async def _next_rows(self) -> pa.RecordBatch | None:
        await trio.lowlevel.checkpoint()
        if not self.left:
            if self._rows_fail:
                raise ValueError("Spark's rows end")
            return None
        self.left -= 1
        values = pa.array([bytes(stage_module._BODY_BYTES)], pa.binary())
        return pa.RecordBatch.from_arrays([values], names=["value"])


async def test_rows_are_encoded_while_one_body_is_under_way() -> None:
    task, shares = SlowStaging(4), list[Share | None]()

    async def run() -> None:
        shares.append(await task.run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for body in range(4):
            await trio.testing.wait_all_tasks_blocked()
            assert (len(task.attempt.begun), task.attempt.arrived) == (body + 1, body)
            assert task.left == max(0, 2 - body), "the next body is made, and no other"
            assert shares == []
            task.attempt.let_one_arrive()
    assert shares[0] is not None
    assert shares[0].rows == shares[0].entries == 4
    assert task.attempt.ends == ["closed", "disconnected"]


async def test_a_body_that_is_lost_ends_the_attempt_at_the_next_step() -> None:
    task = SlowStaging(9)
    task.attempt.error = ConnectionLostError("gone")
    task.attempt.let_one_arrive()
    with pytest.raises(ConnectionLostError, match="gone"):
        await task.run()
    assert len(task.attempt.begun) == 1
    assert task.left >= 7
    assert task.attempt.ends == ["given up", "disconnected"]


async def test_the_last_body_that_is_lost_ends_the_attempt() -> None:
    task = SlowStaging(1)
    task.attempt.error = ConnectionLostError("gone")
    task.attempt.let_one_arrive()
    with pytest.raises(ConnectionLostError, match="gone"):
        await task.run()
    assert task.attempt.ends == ["given up", "disconnected"]


async def test_rows_that_fail_stop_the_body_that_is_under_way() -> None:
    task = SlowStaging(1, rows_fail=True)
    with pytest.raises(ValueError, match="rows end"):
        await task.run()
    assert (len(task.attempt.begun), task.attempt.arrived) == (1, 0)
    assert task.attempt.ends == ["given up", "disconnected"]


class Requests(SinkRequests):
    """Brokers that answer with outcomes in turn, and note what is asked."""

    def __init__(self, *outcomes: str) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[Any] = []

    async def commit(self, name: str, batch: Batch, shares: Any, **others: Any) -> Committed:
        self.asked.append(("commit", name, batch.batch_id, others["once"]))
        return Committed(self.outcomes.pop(0), "", STATE)

    async def roll_forward(
        self, name: str, *, timeout_s: float = 0.0, topics: Iterable[str] = ()
    ) -> SinkState:
        assert 0 < timeout_s <= ONCE.commit_timeout_s
        assert list(topics) == [TOPIC], "a sink without rows does not know who may ask for it"
        self.asked.append(("roll", name))
        return STATE


STATE = SinkState("s", "APPLIED", "q", "/c", 3, 1, [])
TASK = Staged(0, "s", Batch("q", 3, {TOPIC: 1}), Share("a", 1, 1, 1, 1, 1))


@pytest.mark.parametrize("outcome", ["committed", "done", "replay"])
async def test_a_commit_ends_when_the_batch_is_applied(outcome: str) -> None:
    brokers = Requests("wait", outcome)
    await commit(brokers, ONCE, [TASK], 3)
    assert brokers.asked == [("commit", "s", 3, False), ("roll", "s")] * 2


async def test_a_batch_has_its_sink_for_itself() -> None:
    brokers = Requests("committed")
    await commit(brokers, replace(ONCE, checkpoint=""), [TASK], 3)
    assert brokers.asked[0] == ("commit", "s", 3, True)


class Failing(Requests):
    """Brokers that fail at a step."""

    def __init__(self, step: str, error: Exception) -> None:
        super().__init__("committed")
        self._step, self._error = step, error

    async def commit(self, name: str, batch: Batch, shares: Any, **others: Any) -> Committed:
        if self._step == "commit":
            raise self._error
        return await super().commit(name, batch, shares, **others)

    async def roll_forward(
        self, name: str, *, timeout_s: float = 0.0, topics: Iterable[str] = ()
    ) -> SinkState:
        if self._step == "roll":
            raise self._error
        return await super().roll_forward(name, timeout_s=timeout_s, topics=topics)


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        ("commit", ConnectionLostError("gone"), "unknown whether the rows are committed .gone."),
        ("roll", ConnectionLostError("gone"), "the rows are committed, .* do not write them again"),
        ("roll", NotAppliedError("start again"), "the rows are committed, .* do not write them"),
        ("commit", ConflictError(409, "never"), "never"),
    ],
)
async def test_a_batch_that_may_be_committed_says_so(
    step: str, error: BrokerError, says: str
) -> None:
    """A batch that is written again has another sink, so its rows would be there twice."""
    with pytest.raises(BrokerError, match=says):
        await commit(Failing(step, error), replace(ONCE, checkpoint=""), [TASK], 3)
    with pytest.raises(type(error)):  # A stream repeats its micro-batch, whatever it is.
        await commit(Failing(step, error), ONCE, [TASK], 3)


def test_tasks_share_the_brokers() -> None:
    found = [rotated("http://a:1,b,c:3/", task) for task in range(4)]
    assert found == ["http://a:1,b,c:3", "http://b,c:3,a:1", "http://c:3,a:1,b", "http://a:1,b,c:3"]


@pytest.mark.parametrize(
    ("tasks", "batch_id", "says"),
    [
        ([TASK], 4, "the tasks wrote the batch 3, and Spark commits the batch 4"),
        ([TASK, replace(TASK, sink="other")], 3, "run the batch again"),
        ([TASK, replace(TASK, batch=Batch("q", 3, {TOPIC: 2}))], 3, "run the batch again"),
    ],
)
async def test_tasks_of_another_batch_are_not_committed(
    tasks: list[Staged], batch_id: int, says: str
) -> None:
    brokers = Requests()
    with pytest.raises(RuntimeError, match=says):
        await commit(brokers, ONCE, tasks, batch_id)
    assert brokers.asked == []


def test_a_task_without_a_result_cannot_be_committed() -> None:
    with pytest.raises(RuntimeError, match="1 of its 2 tasks have no result"):
        commit_staged(ONCE, [TASK, None], 3)


def test_shares_are_in_the_order_of_the_tasks() -> None:
    tasks = [replace(TASK, task=number) for number in range(3)]
    assert staged([tasks[2], None, *tasks[:2]]) == tasks


def test_the_hash_of_rows_does_not_depend_on_their_order() -> None:
    def hash_of(*batches: Iterable[str]) -> int:
        made = encoder()
        for texts in batches:
            list(made.add(arrow(list(texts))))
        return made.hash

    assert hash_of(TEXTS) == hash_of(reversed(TEXTS)) == hash_of(TEXTS[5:], TEXTS[:5])
    assert hash_of(TEXTS) != hash_of(TEXTS[1:])
    assert hash_of(["ab", "c"]) != hash_of(["a", "bc"])
    assert 0 < hash_of(TEXTS) < 1 << 64


def test_the_topic_is_asked_for_once_when_the_tasks_get_their_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def find(plan: object) -> PlannedTopic:
        asked.append(plan)
        return PLANNED

    monkeypatch.setattr(stage_module.PlannedTopic, "find", find)
    writer = DaybookDataSource(STREAM).streamWriter(FRAME, overwrite=False)
    assert isinstance(writer, OnceStreamWriter)
    writer.commit([], 0)  # A writer that only commits asks nothing, nor does a batch without tasks.
    writer.abort([None], 0)
    assert asked == []
    copies = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
    assert [copy._topic for copy in copies] == [PLANNED, PLANNED]
    assert len(asked) == 1


class Task:
    """A task of Spark with local properties."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.getLocalProperty = properties.get

    def partitionId(self) -> int:  # noqa: N802
        return 5


def staged_by(
    monkeypatch: pytest.MonkeyPatch, writer: OnceStreamWriter | OnceBatchWriter, **properties: str
) -> Staged:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    monkeypatch.setattr(TaskContext, "get", lambda: Task(named))
    monkeypatch.setattr(
        stage_module, "stage_rows", lambda *_, task: Share(f"{task}", 1, 1, 1, 1, 1)
    )
    writer._topic = PLANNED
    return writer.write(iter(()))


def test_a_micro_batch_is_known_by_the_ids_that_spark_tells_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (sink_module.QUERY_ID, sink_module.BATCH_ID) == (
        "sql.streaming.queryId",
        "streaming.sql.batchId",
    )
    ids = {"sql_streaming_queryId": "q-1", "streaming_sql_batchId": "7"}
    for options, name in ((STREAM, "spark-q-1"), ({**STREAM, "sinkName": "mine"}, "mine")):
        made = DaybookDataSource(options).streamWriter(FRAME, overwrite=False)
        assert isinstance(made, OnceStreamWriter)
        found = staged_by(monkeypatch, made, **ids)
        batch = Batch("q-1", 7, {TOPIC: PARTITIONS})
        assert found == Staged(5, name, batch, Share("5", 1, 1, 1, 1, 1))
    writer = OnceStreamWriter(plan_write(STREAM, FRAME, overwrite=False, streaming=True))
    for missing in ids:
        left = {name: value for name, value in ids.items() if name != missing}
        with pytest.raises(RuntimeError, match="this Spark does not tell its tasks the local"):
            staged_by(monkeypatch, writer, **left)


def test_each_batch_write_has_a_sink_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    for _ in range(2):
        writer = DaybookDataSource(OPTIONS).writer(FRAME, overwrite=False)
        assert isinstance(writer, OnceBatchWriter)
        found = staged_by(monkeypatch, writer)
        assert found.batch == Batch(found.sink.removeprefix("spark-batch-"), 0, {TOPIC: PARTITIONS})
        names.add(found.sink)
    assert len(names) == 2


@pytest.mark.parametrize(
    ("change", "streaming", "says"),
    [
        ({"admin.url": ""}, True, "needs the option 'admin.url'"),
        ({"admin.url": "pulsar://x"}, True, "pulsar://x"),
        ({"topic": None}, True, "needs the option 'topic'"),
        ({"checkpointlocation": None}, True, "needs the option 'checkpointLocation'"),
        ({"commitTimeout": "0"}, True, "commitTimeout='0' is not a positive number"),
        ({"sinkName": " "}, True, "'sinkName' is empty"),
        ({"sinkName": "s", "checkpointlocation": None}, False, "'sinkName' is for streams"),
        ({"semantics": "at-least-once"}, True, "'admin.url' is for semantics=exactly-once only"),
    ],
)
def test_a_wrong_option_is_explained(
    change: dict[str, str | None], streaming: bool, says: str
) -> None:
    given = {name: value for name, value in {**STREAM, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=says):
        parse_sink_options(given, streaming=streaming)


def test_a_stream_and_a_batch_are_exactly_once() -> None:
    found = parse_sink_options({**STREAM, "commitTimeout": "5"}, streaming=True)
    assert found.once == OnceOptions("http://x:1", 5.0, "/c", None)
    found = parse_sink_options(OPTIONS, streaming=False)
    assert found.once == OnceOptions("http://x:1", 120.0, "", None)


def test_a_write_that_the_brokers_refuse_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """PySpark prints the traceback of other errors while it pickles a writer."""

    def find(plan: object) -> PlannedTopic:
        raise NotAllowedError(22, "the role 'ann' lacks the right 'produce' on the topic t")

    monkeypatch.setattr(stage_module.PlannedTopic, "find", find)
    options = {"service.url": "pulsar://x", "topic": "t", "admin.url": "http://x"}
    writer = DaybookDataSource({**options, "semantics": "exactly-once"}).writer(
        StructType([StructField("value", StringType())]), overwrite=False
    )
    serializer: Any = CloudPickleSerializer
    with pytest.raises(pickle.PicklingError, match="lacks the right 'produce'") as caught:
        serializer().dumps(writer)
    assert capfd.readouterr().err == ""
    line = traceback.format_exception_only(caught.value)[0]
    assert reason_of(Exception(line)).startswith("the role 'ann' lacks the right 'produce'")
