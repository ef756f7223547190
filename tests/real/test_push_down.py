"""Filters that Spark hands to the source: every order of queries on one frame has its own rows.

Spark 4.3 keeps what was planned for one query and uses it for the next one on the same frame.  The
frames of `daybook.spark.load` must not have this fault, whatever Spark does with them.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, date_format, lit

from daybook.clients.ledgers import blocking as ledgers
from daybook.clients.python import blocking
from daybook.clients.spark import load
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PARTITIONS, GROUPS, GROUP = 3, 12, 30
COUNT = GROUPS * GROUP
Rows = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def filled(cluster: StandaloneProcess) -> tuple[str, str]:
    """Return a topic with partitions and one without, with COUNT messages each.

    They have keys of text, keys of bytes, and none, and are sent in groups at different times.
    """
    parted, plain = "push-down-parted", "push-down-plain"
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(parted, partitions=PARTITIONS)
    with blocking.connect(cluster.service_url) as client:
        for topic in (parted, plain):
            with client.create_producer(topic) as producer:
                for group in range(GROUPS):
                    fill(producer, range(group * GROUP, (group + 1) * GROUP))
    return parted, plain


def fill(producer: blocking.Producer, numbers: range) -> None:
    for n in numbers:
        key: Any = [None, f"k{n % 7}", b"\x00\xff%d" % (n % 5)][n % 3]
        producer.send_nowait(b"%d" % n, key=key)
    producer.flush()


@pytest.fixture
def options(cluster: StandaloneProcess, filled: tuple[str, str]) -> dict[str, Any]:
    return {"service.url": cluster.service_url, "subscribe": ",".join(filled)}


def rows(frame: DataFrame) -> Rows:
    found = frame.select("topic", "partition", "offset").collect()
    return sorted((row[0], row[1], row[2]) for row in found)


def test_filters_that_are_pushed_down_keep_the_rows_that_spark_keeps(
    spark: SparkSession, options: dict[str, Any]
) -> None:
    plain = spark.read.format("daybook").options(**options).load()
    everything = plain.collect()
    assert len(everything) == 2 * COUNT
    times = sorted({row["timestamp"] for row in everything})
    middle = times[len(times) // 2]
    text = date_format(lit(middle), "yyyy-MM-dd HH:mm:ss.SSSSSS")
    middle_text = spark.range(1).select(text).first()[0]  # type: ignore[index]
    filters: list[Any] = [  # The source is planned for each: some seconds of processor in all.
        "partition <> 2 AND offset < 20",
        "partition IN (1, 2, NULL)",
        "partition NOT IN (1, 0) AND offset <> 7",
        "offset IN (3, 11, 100) AND topic LIKE '%plain'",
        "topic LIKE '%parted' OR offset = 3",
        "topic = 'push-down-plain' AND offset >= 300",
        "key IN (X'6B33', X'00FF31') AND offset > 10",
        "key IS NULL AND partition = 1",
        "key <=> X'00FF32'",
        col("timestamp") == middle,
        col("timestamp") != middle,
        col("timestamp") > middle - timedelta(microseconds=1),
        col("timestamp").isin(middle, times[0], times[-1]),
        f"timestamp < TIMESTAMP_NTZ '{middle_text}'",
        f"timestamp >= TIMESTAMP '{middle_text} America/New_York'",
    ]
    local = plain.cache()
    frame = load(spark, pushDown=True, **options)

    def answers(of: DataFrame) -> dict[int, Rows]:
        """Return the rows of all filters, in one query."""
        places = [
            of.filter(each).select(lit(number), "topic", "partition", "offset")
            for number, each in enumerate(filters)
        ]
        found: dict[int, Rows] = {number: [] for number in range(len(filters))}
        for number, *place in sorted(map(tuple, reduce(DataFrame.unionAll, places).collect())):
            found[number].append((place[0], place[1], place[2]))
        return found

    expected = answers(local)
    for number, got in answers(frame).items():
        assert got == expected[number], filters[number]
    assert sum(1 for each in expected.values() if each) > 12
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    zoned = f"timestamp <= TIMESTAMP '{middle_text}'"
    assert rows(frame.filter(zoned)) == rows(local.filter(zoned))
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    texts = load(spark, schema="key string, offset bigint", pushDown="true", **options)
    local_texts = local.filter("string(key) = 'k3'").count()
    assert texts.filter("key = 'k3'").count() == local_texts > 0
    local.unpersist()


def test_a_filter_leaves_tasks_out(spark: SparkSession, options: dict[str, Any]) -> None:
    frame = load(spark, pushDown=True, **options)
    for condition, tasks in [
        ("true", PARTITIONS + 1),
        ("partition = 2", 1),
        ("topic = 'push-down-plain'", 1),
        ("partition = 0", 2),
        ("offset >= 200", 1),
    ]:
        assert frame.filter(condition).rdd.getNumPartitions() == tasks, condition
    # A task drops rows before Spark sees them.  Spark counts those that it gets.
    assert frame.filter("key = X'6B33'").count() < COUNT / 7


def test_every_order_of_queries_on_one_frame_has_its_own_rows(
    spark: SparkSession, options: dict[str, Any]
) -> None:
    a, b = "partition = 2 AND offset < 40", "key = X'6B33'"
    everything = load(spark, **options)  # without push-down
    expected = {each: rows(everything.filter(each)) for each in (a, b, "true")}
    assert len(expected["true"]) == 2 * COUNT
    frame = load(spark, pushDown=True, **options)

    def check(order: Sequence[str], on: DataFrame = frame) -> None:
        for each in order:
            assert rows(on.filter(each)) == expected[each], (order, each)

    check([a, "true", b, a])
    check([b, "true"], load(spark, pushDown=True, **options))
    assert (frame.filter(a).count(), frame.count()) == (len(expected[a]), 2 * COUNT)

    joined = frame.filter(a).alias("l").join(frame.alias("r"), ["topic", "partition", "offset"])
    assert rows(joined) == expected[a]
    two = frame.filter(a).select("value").join(frame.filter(b).select("value"), "value")
    left, right = (
        {row["value"] for row in everything.filter(each).select("value").collect()}
        for each in (a, b)
    )
    assert {row["value"] for row in two.collect()} == left & right
    both = frame.filter(a).union(frame).union(frame.filter(b))
    assert rows(both) == sorted(expected[a] + expected["true"] + expected[b])
    places = frame.select("topic", "partition", "offset")
    rest = places.exceptAll(places.filter(a))
    assert rows(rest) == sorted(set(expected["true"]) - set(expected[a]))

    frame.createOrReplaceTempView("pushed")
    found = spark.sql(
        "SELECT count(*), (SELECT count(*) FROM pushed WHERE partition = 2 AND offset < 40),"
        " (SELECT max(offset) FROM pushed) FROM pushed WHERE key = X'6B33'"
    ).first()
    assert found is not None
    assert tuple(found)[:2] == (len(expected[b]), len(expected[a]))
    assert found[2] == COUNT - 1

    with ThreadPoolExecutor(4) as pool:
        asked = [a, "true", b, "true"]
        answers = list(pool.map(lambda each: rows(frame.filter(each)), asked))
    assert answers == [expected[each] for each in asked]

    frame.cache()
    check([a, "true"])
    frame.unpersist()
    filtered = frame.filter(a).cache()
    assert filtered.count() == len(expected[a])
    check([b])
    filtered.unpersist()
    other = spark.newSession()
    assert load(other, pushDown=True, **options).filter(a).count() == len(expected[a])
    check(["true"])


def test_what_lies_outside_of_the_filters_is_not_read(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
) -> None:
    admin.create_topic(topic, partitions=2)
    with client.create_producer(topic, batch_messages_max=10) as producer:
        fill(producer, range(100))
        admin.unload_topic(f"{topic}-partition-0")  # which closes its ledger
        first = client.offsets(f"{topic}-partition-0").next
        fill(producer, range(100, 200))
    given = {"service.url": cluster.service_url, "topic": topic, "read": "bookies"}
    frame = load(spark, pushDown=True, **given)
    assert frame.count() == 200
    (told,) = client.ledgers(f"{topic}-partition-0")
    assert told.url is not None
    with ledgers.connect(told.url) as bookies:
        bookies.delete(told.sealed[0].ledger_id)
    admin.truncate_topic(f"{topic}-partition-1")
    kept = f"partition = 0 AND offset >= {first}"
    expected = client.offsets(f"{topic}-partition-0").next - first
    assert frame.filter(kept).count() == expected > 0
    for condition, error in [
        ("true", "partition 1: the offsets 0 to .* are no longer retained"),
        ("partition = 0", "from offset 0 on are in ledger .*, which cannot be read"),
        (f"offset >= {first}", "partition 1: the offsets .* are no longer retained"),
    ]:
        with pytest.raises(PySparkException, match=error):
            frame.filter(condition).count()
    assert frame.filter(kept).count() == expected
    # A topic that is made anew is not taken for the one whose bounds the frame has.
    admin.delete_topic(topic, force=True)
    admin.create_topic(topic, partitions=2)
    with client.create_producer(topic) as producer:
        fill(producer, range(300))
    with pytest.raises(PySparkException, match="deleted and created again"):
        frame.filter(kept).count()


def test_a_frame_keeps_its_bounds(
    spark: SparkSession, cluster: StandaloneProcess, client: blocking.Client, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        fill(producer, range(50))
        given = {"service.url": cluster.service_url, "topic": topic}
        frame = load(spark, pushDown=True, endingOffsets='{"0": 40}', **given)
        open_ended = load(spark, pushDown=True, startingOffsets='{"0": 10}', **given)
        fill(producer, range(50, 80))
    assert frame.count() == 40
    assert open_ended.count() == 40
    assert open_ended.filter("offset >= 45").count() == 5
    assert open_ended.filter("offset < 15").count() == 5


def test_push_down_is_refused_where_spark_would_mix_filters_up(
    spark: SparkSession, options: dict[str, Any]
) -> None:
    with pytest.raises(PySparkException, match=r"daybook\.spark\.load\(spark, \*\*options\)"):
        spark.read.format("daybook").options(pushDown="true", **options).load().count()
    stream = spark.readStream.format("daybook").options(pushDown="true", **options).load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="Spark hands no filters to streams"):
        query.awaitTermination(60)
    with pytest.raises(ValueError, match="unknown option 'starting'"):
        load(spark, pushDown=True, starting="earliest", **options)
