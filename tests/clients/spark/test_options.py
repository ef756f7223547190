"""The options of a query: defaults, and errors that say what to write instead."""

import pickle

import pytest

from daybook.bookie.ledger.security import BookieAccess
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.clients.python.credentials import PasswordFile
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import (
    ANONYMOUS,
    QueryCredentials,
    credential_options,
    parse_credentials,
)
from daybook.clients.spark.offsets import OffsetRange, Partition
from daybook.clients.spark.options import AtTimes, ReadTask, parse_options
from daybook.clients.spark.selection import Selection, parse_selection
from daybook.clients.spark.tls_options import parse_tls, spark_options

T, U = "persistent://public/default/t", "persistent://shop/eu/u"
BASE = {"service.url": "pulsar://localhost:6650", "topic": "t"}
URL = {"service.url": "pulsar://localhost:6650"}


def test_options_have_their_defaults_and_any_case() -> None:
    options = parse_options(
        BASE | {"MINPARTITIONS": "3", "failondataloss": "False"}, streaming=True
    )
    assert (options.partitions_min, options.fail_on_data_loss) == (3, False)
    assert options.selection.only_topic == T
    assert options.starting is None
    assert options.ending == "latest"
    assert options.offsets_per_trigger_max is None
    assert (options.trigger_delay_max_s, options.outage_timeout_s) == (900, 900)


@pytest.mark.parametrize(
    ("extra", "streaming", "says"),
    [
        ({"format": "t"}, False, "unknown option 'format'; there are: "),
        ({"StartingOffset": "1"}, True, "'startingoffset': did you mean 'startingOffsets'"),
        ({"endingOffsets": "latest"}, True, "batch"),
        ({"endingTimestamp": "5"}, True, "batch"),
        ({"maxOffsetsPerTrigger": "5"}, False, "streams"),
        ({"subscription": "s"}, False, "subscription is for streams"),
        ({"maxBytesPerTrigger": "5m"}, False, "maxBytesPerTrigger is for streams"),
        ({"maxBytesPerTrigger": "0"}, True, "write a number and a unit, such as 64m"),
        ({"maxBytesPerTrigger": "-1k"}, True, "is not a size"),
        ({"maxBytesPerTrigger": "5 parsecs"}, True, "is not a size"),
        ({"schemaMode": "avro"}, False, "schemaMode='avro' is none of raw, topic"),
        ({"mode": "FAILFAST"}, False, "mode needs schemaMode=topic"),
        (
            {"schemaMode": "topic", "mode": "x"},
            False,
            "mode='x' is neither FAILFAST nor PERMISSIVE",
        ),
        ({"schemaMode": "topic", "columns": "a,a"}, True, "names a column twice"),
        ({"schemaMode": "topic", "keyType": "int"}, True, "neither binary nor string"),
        ({"onUnreadable": "ignore"}, False, "is none of fail, null, skip"),
        ({"minPartitions": "0"}, False, "positive"),
        ({"maxRecordsPerPartition": "²"}, False, "positive"),
        ({"failOnDataLoss": "maybe"}, False, "neither"),
        ({"topic": ""}, False, "empty"),
        ({"service.url": " "}, False, "missing"),
        ({"subscribe": "t"}, False, "one of .* there is topic and subscribe"),
        ({"subscription": ""}, True, "empty"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, True, "more than"),
        ({"maxTriggerDelay": "5s"}, True, "needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5"}, True, "a number and a unit"),
        ({"outageTimeout": "5 weeks"}, True, "a number and a unit"),
        ({"startingTimestamp": "yesterday"}, True, "milliseconds"),
        ({"startingTimestamp": "1764000000"}, True, "seconds, .* write 1764000000000"),
        ({"startingTimestamp": "946684799999"}, True, "is a time in seconds"),
        ({"endingTimestamp": "946684800"}, False, "is a time in seconds"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 1764000000}}'}, True, "in seconds"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, True, "exclude each other"),
        ({"startingOffsetsByTimestamp": "5"}, True, "milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, True, "needs startingTimestamp"),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "first"},
            True,
            "neither error nor latest",
        ),
    ],
)
def test_wrong_options_are_errors(extra: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(BASE | extra, streaming=streaming)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64m", 64 << 20),
        ("1 GiB", 1 << 30),
        ("2kb", 2048),
        ("100", 100),
        ("7B", 7),
        ("1t", 1 << 40),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    options = parse_options(BASE | {"maxBytesPerTrigger": text}, streaming=True)
    assert options.bytes_per_trigger_max == size


def test_a_table_of_spark_s_catalog_has_no_options_and_is_told_what_has() -> None:
    with pytest.raises(ValueError, match="use CREATE TEMPORARY VIEW"):
        parse_options({}, streaming=False)


def test_a_query_may_begin_and_end_at_times() -> None:
    options = parse_options(
        BASE | {"startingTimestamp": "5", "endingOffsetsByTimestamp": '{"t": {"0": 7}}'},
        streaming=False,
    )
    assert options.starting == AtTimes(5, "startingTimestamp", end_if_none=False)
    expected = {Partition(T, 0): 7}
    assert options.ending == AtTimes(expected, "endingOffsetsByTimestamp", end_if_none=True)
    for time in (0, 946684799, 946684800000):
        assert parse_options(BASE | {"startingTimestamp": f"{time}"}, streaming=True)
    lenient = BASE | {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    found = parse_options(lenient, streaming=True).starting
    assert found == AtTimes(5, "startingTimestamp", end_if_none=True)


def test_an_archive_has_typed_columns_and_times() -> None:
    archive = {"topic": "t", "read": "archive+live", "archive": "a"}
    given = archive | {"schemaMode": "topic", "startingTimestamp": "5", "endingTimestamp": "6"}
    options = parse_options(BASE | given, streaming=False)
    assert options.archive == "a"
    assert options.typed is not None
    assert options.starting == AtTimes(5, "startingTimestamp", end_if_none=False)
    assert options.ending == AtTimes(6, "endingTimestamp", end_if_none=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"topic": "t"}, Selection({T: "t"})),
        ({"subscribe": "t, shop/eu/u"}, Selection({T: "t", U: "shop/eu/u"})),
        ({"subscribepattern": "orders-.*"}, Selection(pattern="orders-.*")),
        ({"assign": '{"t": [2, 0]}'}, Selection({T: "t"}, {T: (0, 2)})),
    ],
)
def test_topics_are_named_in_four_ways(given: dict[str, str], expected: Selection) -> None:
    assert parse_selection(given) == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give one of the options topic, subscribe, subscribePattern, assign"),
        ({"subscribe": "t,"}, "not a topic name"),
        ({"subscribe": "t,persistent://public/default/t"}, "twice"),
        ({"topic": "a/b"}, "not a topic name"),
        ({"subscribepattern": "a("}, "not a regular expression"),
        ({"subscribepattern": "a.*/b/c"}, "does not name one namespace"),
        ({"assign": "t"}, "write JSON such as"),
        ({"assign": '{"t": []}'}, "not a list of different partitions"),
        ({"assign": '{"t": [0, 0]}'}, "not a list of different partitions"),
        ({"assign": '{"t": [-1]}'}, "not a list of different partitions"),
        ({"assign": '{"t": [0], "public/default/t": [1]}'}, "not a list of different"),
    ],
)
def test_topics_that_cannot_be_read_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_selection(given)


TLS = {
    "service.url": "pulsar+ssl://x",
    "topic": "t",
    "tls.trusted": "/ca.pem",
    "tls.certificate": "/me.pem",
    "tls.key": "/me.key",
    "tls.verifyHost": "false",
}


def test_options_of_tls() -> None:
    options = parse_options(TLS, streaming=False)
    assert options.tls == TlsOptions("/ca.pem", "/me.pem", "/me.key", verify_host=False)
    assert parse_tls({n.lower(): v for n, v in TLS.items()}, "pulsar+ssl://x") == options.tls
    assert TLS | spark_options(options.tls) == TLS
    assert parse_options(TLS | {"tls.verifyHost": "True"}, streaming=True).tls is not None
    plain = {"service.url": "pulsar+ssl://x", "topic": "t"}
    assert parse_options(plain, streaming=False).tls == TlsOptions()
    assert parse_options(BASE, streaming=False).tls is None
    assert spark_options(None) == {}


BOOKIES = {
    "service.url": "pulsar://x",
    "topic": "t",
    "bookie.tls": "true",
    "tls.trusted": "/ca.pem",
    "bookie.user": "spark",
    "bookie.password.file": "/run/secret",
}


def test_options_about_bookies() -> None:
    options = parse_options(BOOKIES, streaming=False)
    access = BookieAccess(True, "/ca.pem", user="spark", password_file="/run/secret")
    assert (options.bookies, options.tls) == (access, None)
    assert pickle.loads(pickle.dumps(options.bookies)) == access
    both = parse_options(BOOKIES | {"service.url": "pulsar+ssl://x"}, streaming=True)
    assert both.bookies == access
    assert both.tls == TlsOptions("/ca.pem")
    assert parse_options(TLS, streaming=False).bookies is None
    only_tls = parse_options(BASE | {"bookie.tls": "true"}, streaming=False)
    assert only_tls.bookies == BookieAccess(True)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"bookie.tls": "yes"}, "bookie.tls='yes' is neither true nor false"),
        ({"bookie.tls": "false"}, "tls.trusted is for brokers with TLS"),
        ({"bookie.user": " "}, "'bookie.user' is empty"),
        ({"bookie.password.file": ""}, "'bookie.password.file' is empty"),
    ],
)
def test_options_about_bookies_that_make_no_sense(extra: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(BOOKIES | extra, streaming=False)
    half = {"service.url": "pulsar://x", "topic": "t", "bookie.user": "spark"}
    with pytest.raises(ValueError, match="belong together"):
        parse_options(half, streaming=False)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"service.url": "pulsar://x"}, "tls.trusted is for brokers with TLS"),
        ({"tls.verifyHost": "maybe"}, "'maybe' is neither true nor false"),
        ({"tls.key": " "}, "'tls.key' is empty"),
    ],
)
def test_options_of_tls_that_make_no_sense(extra: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(TLS | extra, streaming=False)


ZOOKEEPER = {
    "zookeeper.tls": "true",
    "zookeeper.user": "daybook",
    "zookeeper.password.file": "/password",
}


def test_options_of_zookeeper() -> None:
    options = parse_options(TLS | ZOOKEEPER, streaming=False)
    assert options.zookeeper == ZooKeeperOptions(options.tls, "daybook", "/password")
    # The certificates may be for ZooKeeper alone.
    plain = TLS | ZOOKEEPER | {"service.url": "pulsar://x"}
    options = parse_options(plain, streaming=True)
    assert options.tls is None
    assert options.zookeeper is not None
    assert options.zookeeper.tls == TlsOptions("/ca.pem", "/me.pem", "/me.key", verify_host=False)
    without = parse_options(BASE | ZOOKEEPER | {"zookeeper.tls": "false"}, streaming=False)
    assert without.zookeeper == ZooKeeperOptions(None, "daybook", "/password")
    assert parse_options(BASE, streaming=False).zookeeper is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"zookeeper.tls": "maybe"}, "'maybe' is neither true nor false"),
        ({"zookeeper.user": "daybook"}, "belong together"),
        ({"zookeeper.password.file": "/p"}, "belong together"),
        ({"zookeeper.user": "a:b", "zookeeper.password.file": "/p"}, "must not have a colon"),
        ({"tls.trusted": "/ca.pem", "zookeeper.tls": "false"}, "is for brokers with TLS"),
    ],
)
def test_options_of_zookeeper_that_make_no_sense(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(BASE | given, streaming=False)


# -- credentials

BASIC = {"basic.user": "ann", "basic.password.file": "/run/password"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ANONYMOUS),
        ({"token": " eyJ.x.y "}, QueryCredentials("eyJ.x.y")),
        ({"token.file": "/run/my token"}, QueryCredentials("file:///run/my%20token")),
        (BASIC, QueryCredentials(basic=PasswordFile("ann", "/run/password"))),
    ],
)
def test_credentials(given: dict[str, str], expected: QueryCredentials) -> None:
    assert parse_options(BASE | given, streaming=True).credentials == expected
    again = credential_options(expected)
    assert {name: value.strip() for name, value in given.items()} == again
    assert parse_credentials(again) == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "x", "token.file": "/y"}, "token and token.file exclude each other"),
        ({"token": "x", **BASIC}, "token and basic.user exclude each other"),
        ({"basic.user": "ann"}, "need each other"),
        ({"basic.password.file": "/x"}, "need each other"),
        ({**BASIC, "basic.user": "a:b"}, "is no user"),
        ({"token.file": "token"}, "not an absolute path"),
        ({"token.file": " "}, "the option 'token.file' is empty"),
        ({"token": ""}, "the option 'token' is empty"),
    ],
)
def test_credentials_that_make_no_sense(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(BASE | given, streaming=False)


def test_a_token_is_not_shown() -> None:
    options = parse_options(BASE | {"token": "eyJ.secret.y"}, streaming=True)
    part, who = OffsetRange(0, 1, 2, "t"), options.credentials
    task = ReadTask("pulsar://x", "t", part, fail_on_data_loss=True, credentials=who)
    for text in (repr(options), str(options), repr(task), str(options.credentials)):
        assert "secret" not in text
