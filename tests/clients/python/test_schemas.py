"""Typed messages: values to bytes and back, and through a broker, version by version."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook import schemas
from daybook.clients.python.client import Client
from daybook.clients.python.errors import (
    IncompatibleSchemaError,
    TopicNotFoundError,
    UnavailableError,
)
from daybook.clients.python.protocol.letters import DeadLetterPolicy
from daybook.clients.python.schemas import versions
from daybook.clients.python.schemas.key_value import plain_decoder
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import Cluster

TOPIC = "persistent://public/default/t"


class Color(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass
class Order:
    customer: str
    count: schemas.Int32
    weight: schemas.Float32 = 0.5
    paid: bool = False
    note: str | None = None
    nick: str | None = field(default="x")
    tags: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    color: Color = Color.RED
    start: Point | None = None
    stops: list[Point] = field(default_factory=list)
    at: datetime | None = None
    day: date | None = None
    raw: bytes = b"\xff"


class User(msgspec.Struct):
    name: str
    age: int = 0


ORDER = Order(
    "ann",
    3,
    1.5,
    True,
    None,
    None,
    ["a", "b"],
    {"s": 1},
    Color.BLUE,
    Point(1),
    [Point(2, 0.25), Point(3)],
    datetime(2026, 11, 23, 22, 5, 1, 123456, tzinfo=UTC),
    date(2026, 11, 23),
    b"\0\xfe",
)
MAKERS: list[Callable[..., schemas.Schema[Any]]] = [schemas.json, schemas.avro]


# -- values and bytes


@pytest.mark.parametrize("make", MAKERS)
def test_records_come_back_as_they_were(make: Callable[..., schemas.Schema[Any]]) -> None:
    for value in (ORDER, Order("bob", 0)):
        schema = make(Order)
        assert schema.decode(schema.encode(value)) == value
    users = make(User)
    assert users.decode(users.encode(User("ä", 7))) == User("ä", 7)


@pytest.mark.parametrize("make", MAKERS)
def test_the_definition_of_a_class(make: Callable[..., schemas.Schema[Any]]) -> None:
    found = msgspec.json.decode(make(Order, namespace="shop").info.data)
    assert (found["name"], found["namespace"]) == ("Order", "shop")
    types = {each["name"]: each["type"] for each in found["fields"]}
    point = {
        "type": "record",
        "name": "Point",
        "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "double", "default": 0.0}],
    }
    avro = make is schemas.avro
    moment = {"type": "long", "logicalType": "timestamp-micros"} if avro else "string"
    day = {"type": "int", "logicalType": "date"} if avro else "string"
    assert types == {
        "customer": "string",
        "count": "int",
        "weight": "float",
        "paid": "boolean",
        "note": ["null", "string"],
        "nick": ["string", "null"],  # Its default is not null.
        "tags": {"type": "array", "items": "string"},
        "sizes": {"type": "map", "values": "long"},
        "color": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
        "start": ["null", point],
        "stops": {"type": "array", "items": "Point"},  # It is defined above.
        "at": ["null", moment],
        "day": ["null", day],
        "raw": "bytes",
    }
    defaults = {each["name"]: each["default"] for each in found["fields"] if "default" in each}
    assert "customer" not in defaults
    assert (defaults["note"], defaults["nick"], defaults["raw"]) == (None, "x", "\xff")
    assert (defaults["color"], defaults["tags"]) == ("RED", [])


def test_what_no_schema_can_describe_is_told_with_its_place() -> None:
    @dataclass
    class Odd:
        made: complex

    with pytest.raises(TypeError, match=r"Odd\.made"):
        schemas.json(Odd)
    with pytest.raises(TypeError, match="has no fields"):
        schemas.avro(int)


def test_a_json_value_that_no_consumer_could_read_is_refused() -> None:
    @dataclass
    class Visit:
        page: str
        seconds: float

    schema = schemas.json(Visit)
    wrong = (Visit(5, 1.0), Visit("/", "1"), Visit("/", float("nan")))  # type: ignore[arg-type]
    for value in wrong:
        with pytest.raises(TypeError, match=r"does not fit its schema.*\$\."):
            schema.encode(value)
    assert schema.decode(schema.encode(Visit("/", 1))) == Visit("/", 1.0)


@pytest.mark.parametrize("make", MAKERS)
def test_a_value_of_another_class_is_refused(make: Callable[..., schemas.Schema[Any]]) -> None:
    schema = make(User)
    with pytest.raises(TypeError, match="must be a User, not dict"):
        schema.encode({"name": "ann"})
    with pytest.raises(ValueError, match="message"):
        schema.decode(b"\xff\xff\xff")


PRIMITIVES: list[tuple[schemas.Schema[Any], Any, bytes]] = [
    (schemas.STRING, "ä", "ä".encode()),
    (schemas.BOOLEAN, True, b"\1"),
    (schemas.INT8, -2, b"\xfe"),
    (schemas.INT16, 258, b"\1\2"),
    (schemas.INT32, -1, b"\xff" * 4),
    (schemas.INT64, 1 << 40, b"\0\0\1\0\0\0\0\0"),
    (schemas.FLOAT, 0.5, b"\x3f\0\0\0"),
    (schemas.DOUBLE, 0.5, b"\x3f\xe0\0\0\0\0\0\0"),
    (schemas.TIMESTAMP, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"\0" * 6 + b"\3\xe8"),
    (
        schemas.INSTANT,
        datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
        b"\xff" * 8 + (500_000_000).to_bytes(4, "big"),
    ),
    (schemas.LOCAL_DATE, date(1970, 1, 3), b"\0" * 7 + b"\2"),
    (schemas.LOCAL_TIME, time(0, 0, 0, 2), (2000).to_bytes(8, "big")),
    (
        schemas.LOCAL_DATE_TIME,
        datetime(1970, 1, 2, 0, 0, 0, 1),  # noqa: DTZ001
        b"\0" * 7 + b"\1" + (1000).to_bytes(8, "big"),
    ),
]


@pytest.mark.parametrize(("schema", "value", "data"), PRIMITIVES)
def test_single_values_have_pulsars_encodings(
    schema: schemas.Schema[Any], value: object, data: bytes
) -> None:
    assert schema.encode(value) == data
    assert schema.decode(data) == value
    assert schema.info.data == b""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (schemas.STRING, b"x"),
        (schemas.INT8, 128),
        (schemas.INT64, True),
        (schemas.INT32, 1.0),
        (schemas.BOOLEAN, 1),
        (schemas.TIMESTAMP, datetime(2026, 1, 1)),  # noqa: DTZ001
        (schemas.LOCAL_DATE_TIME, datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_value_that_is_not_of_the_schema_is_refused(
    schema: schemas.Schema[Any], value: object
) -> None:
    with pytest.raises((TypeError, ValueError)):
        schema.encode(value)


def test_a_moment_is_the_same_in_all_time_zones() -> None:
    berlin = timezone(timedelta(hours=1))
    moment = datetime(2026, 11, 23, 23, 5, tzinfo=berlin)
    assert schemas.INSTANT.decode(schemas.INSTANT.encode(moment)) == moment


@pytest.mark.parametrize("schema", [s for s, *_ in PRIMITIVES if s is not schemas.STRING])
@given(data=st.binary(max_size=20))
def test_garbage_is_a_value_error(schema: schemas.Schema[Any], data: bytes) -> None:
    with suppress(ValueError):
        schema.decode(data)


def test_pairs_and_whatever_they_are_made_of() -> None:
    pairs = schemas.key_value(schemas.STRING, schemas.avro(User))
    assert pairs.decode(pairs.encode(("k", User("ann")))) == ("k", User("ann"))
    assert pairs.info.properties["key.schema.type"] == "STRING"
    assert pairs.info.properties["value.schema.type"] == "AVRO"
    anything = plain_decoder(schemas.AUTO.decoder_of(pairs.info))
    assert anything(pairs.encode(("k", User("ann", 3)))) == ("k", {"name": "ann", "age": 3})
    for data in (b"", b"\0\0\0\5a", b"\0\0\0\1a\0\0\0"):
        with pytest.raises(ValueError, match="too short"):
            pairs.decode(data)


def test_messages_of_protobuf() -> None:
    schema = schemas.protobuf(pb.MessageIdData)
    value = pb.MessageIdData(ledgerId=1, entryId=2)
    assert schema.decode(schema.encode(value)) == value
    described = msgspec.json.decode(schema.info.data)
    assert described["rootMessageTypeName"] == "pulsar.proto.MessageIdData"
    with pytest.raises(ValueError, match="cannot be encoded"):
        schema.encode(pb.MessageIdData())  # It lacks required fields.
    with pytest.raises(ValueError, match="MessageIdData"):
        schema.decode(b"\xff")


def test_an_avro_reader_maps_the_version_of_the_writer() -> None:
    class Old(msgspec.Struct):
        name: str
        gone: int = 5

    class New(msgspec.Struct):
        name: str
        age: int = 18

    old, new = schemas.avro(Old), schemas.avro(New)
    data = old.encode(Old("ann", 6))
    assert plain_decoder(new.decoder_of(old.info))(data) == New("ann", 18)
    assert plain_decoder(old.decoder_of(new.info))(new.encode(New("bob", 3))) == Old("bob", 5)
    with pytest.raises(ValueError, match="not Avro"):
        new.decoder_of(schemas.STRING.info)
    definition = {"type": "record", "name": "R", "fields": [{"name": "z", "type": "int"}]}
    other = schemas.avro_dict(definition)
    with pytest.raises(ValueError, match="does not read"):
        plain_decoder(other.decoder_of(old.info))(data)


# -- through a broker


@dataclass
class Small:
    a: int


@dataclass
class Large:
    a: int
    b: int = 9


@asynccontextmanager
async def one_client() -> AsyncGenerator[tuple[Cluster, Client]]:
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        yield cluster, client


@pytest.mark.parametrize("make", MAKERS)
async def test_typed_messages_of_two_versions(
    make: Callable[..., schemas.Schema[Any]], autojump_clock: MockClock
) -> None:
    async with one_client() as (_, client):
        small, large = make(Small, name="R"), make(Large, name="R")
        async with (
            await client.subscribe("t", "s", schema=large, initial_position="earliest") as consumer,
            await client.create_producer("t", schema=small) as old,
            await client.create_producer("t", schema=large, batching=False) as new,
        ):
            await old.send(Small(1))
            await new.send(Large(2, 3))
            await new.send(None)
            found = [await consumer.receive() for _ in range(3)]
            assert [m.value for m in found] == [Large(1, 9), Large(2, 3), None]
            assert [m.schema_version for m in found] == [1, 0, 0]
            assert found[0].data == small.encode(Small(1))
            async with await client.create_reader("t", start="earliest", schema=small) as reader:
                assert [m.value for m in await reader.receive_batch()][:1] == [Small(1)]


async def test_a_schema_that_does_not_fit_is_refused_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    async with one_client() as (_, client):
        await client.create_producer("t", schema=schemas.avro(Small, name="R"))
        with pytest.raises(IncompatibleSchemaError, match="STRING"):
            await client.create_producer("t", schema=schemas.STRING)
        with pytest.raises(IncompatibleSchemaError, match="field 'name'"):
            await client.subscribe("t", "s", schema=schemas.avro(User, name="R"))
        producer = await client.create_producer("t", schema=schemas.avro(Small, name="R"))
        with pytest.raises(TypeError, match="must be a Small"):
            await producer.send(b"bytes")


async def test_a_client_gets_the_schema_that_messages_name(autojump_clock: MockClock) -> None:
    both: list[schemas.Schema[Any]] = [schemas.avro(each, name="R") for each in (Small, Large)]
    async with one_client() as (_, client):
        for schema in both:
            producer = await client.create_producer("t", schema=schema)
            version = producer.schema_version
            assert version is not None
            for found in (
                await client.schema("t", version.to_bytes(8, "big")),
                await client.schema("t"),  # the newest one
            ):
                assert (found.number, found.version) == (version, version.to_bytes(8, "big"))
                assert (found.info.type, found.info.data) == (schema.info.type, schema.info.data)
        with pytest.raises(TopicNotFoundError):
            await client.schema("t", b"\0" * 7 + b"\7")


async def test_a_consumer_without_a_schema_gets_bytes(autojump_clock: MockClock) -> None:
    async with one_client() as (_, client):
        consumer = await client.subscribe("t", "s")
        plain = await client.create_producer("t")
        await plain.send(b"x")
        message = await consumer.receive()
        assert (message.value, message.data, message.schema_version) == (b"x", b"x", None)


async def test_a_consumer_of_anything_decodes_by_the_version(autojump_clock: MockClock) -> None:
    async with one_client() as (_, client):
        consumer = await client.subscribe("t", "s", schema=schemas.AUTO)
        producer = await client.create_producer("t", schema=schemas.avro(Small))
        await producer.send(Small(5))
        assert (await consumer.receive()).value == {"a": 5}


async def test_a_pattern_keeps_the_versions_of_topics_apart(autojump_clock: MockClock) -> None:
    async with one_client() as (_, client):
        first = await client.create_producer("v-1", schema=schemas.avro(Small, name="R"))
        other = await client.create_producer("v-2", schema=schemas.avro(User, name="R"))
        consumer = await client.subscribe(
            ["v-1", "v-2"], "s", schema=schemas.AUTO, initial_position="earliest"
        )
        await first.send(Small(1))
        await other.send(User("ann", 2))
        found = [(await consumer.receive()).value for _ in range(2)]
        assert sorted(map(str, found)) == ["{'a': 1}", "{'name': 'ann', 'age': 2}"]


async def test_a_version_that_cannot_be_asked_for_costs_no_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_client() as (_, client):
        consumer = await client.subscribe("t", "s", schema=schemas.avro(Large, name="R"))
        producer = await client.create_producer("t", schema=schemas.avro(Small, name="R"))
        ask = versions.SchemaVersions._load
        waits = trio.Event()

        async def never(*_: object) -> None:
            waits.set()
            await trio.sleep_forever()

        monkeypatch.setattr(versions.SchemaVersions, "_load", never)
        await producer.send(Small(1))
        with trio.move_on_after(1) as scope:  # The message has left the queue, so it is returned.
            message = await consumer.receive()
        assert not scope.cancelled_caught
        with pytest.raises(UnavailableError, match="not known yet"):
            _ = message.value
        monkeypatch.setattr(versions.SchemaVersions, "_load", ask)
        await consumer.load_schemas([message])
        assert message.value == Large(1, 9)


@pytest.mark.parametrize("definition", [b'"string"', b'{"type":"record"}', b"[" * 100_000])
async def test_a_definition_that_cannot_be_used_costs_no_message(definition: bytes) -> None:
    known = versions.SchemaVersions(schemas.AUTO)
    decoder = known.decoder("t", b"\1")

    async def ask(_: bytes) -> SchemaInfo:
        await trio.lowlevel.checkpoint()
        return SchemaInfo(pb.Schema.Avro, definition)

    await known.load([(decoder, ask)])
    assert not decoder.ready
    with pytest.raises(Exception) as caught:  # noqa: PT011  it is that of the library
        decoder.decode(b"")
    assert not isinstance(caught.value, UnavailableError)


async def test_a_version_that_was_deleted_is_told(autojump_clock: MockClock) -> None:
    async with one_client() as (cluster, client):
        consumer = await client.subscribe("t", "s", schema=schemas.avro(Large, name="R"))
        producer = await client.create_producer("t", schema=schemas.avro(Small, name="R"))
        await producer.send(Small(1))
        await cluster.broker.schemas.delete_all(TopicName.parse("t"))
        message = await consumer.receive()
        with pytest.raises(ValueError, match="was deleted"):
            _ = message.value
        assert message.data


async def test_a_separated_pair_has_its_key_in_the_message(autojump_clock: MockClock) -> None:
    pairs = schemas.key_value(schemas.INT32, schemas.avro(Small, name="R"), separated=True)
    newer = schemas.key_value(schemas.INT32, schemas.avro(Large, name="R"), separated=True)
    async with one_client() as (_, client):
        consumer = await client.subscribe("t", "s", schema=newer)
        auto = await client.subscribe("t", "auto", schema=schemas.AUTO)
        producer = await client.create_producer("t", schema=pairs)
        with pytest.raises(ValueError, match="leave `key` away"):
            await producer.send((7, Small(1)), key="k")
        with pytest.raises(TypeError, match="must be a pair"):
            await producer.send(None)
        await producer.send((7, Small(1)))
        await producer.send((7, None))  # type: ignore[arg-type]
        await producer.send((None, Small(2)))  # type: ignore[arg-type]
        found = [await consumer.receive() for _ in range(3)]
        assert [each.value for each in found] == [(7, Large(1, 9)), (7, None), (None, Large(2, 9))]
        assert (found[0].key_bytes, found[0].key_is_bytes) == (b"\0\0\0\7", True)
        assert found[0].data == schemas.avro(Small, name="R").encode(Small(1))
        assert (found[1].is_null, found[2].key) == (True, None)
        assert (await auto.receive()).value == (7, {"a": 1})


async def test_a_letter_has_the_schema_of_its_message(autojump_clock: MockClock) -> None:
    small, large = schemas.avro(Small, name="R"), schemas.avro(Large, name="R")
    policy = DeadLetterPolicy(0, initial_subscription="letters")
    async with one_client() as (_, client):
        plain = await client.create_producer("t")
        old = await client.create_producer("t", schema=small)
        new = await client.create_producer("t", schema=large)
        consumer = await client.subscribe(
            "t",
            "s",
            type="shared",
            schema=large,
            dead_letter=policy,
            retry=True,
            initial_position="earliest",
        )
        await old.send(Small(1))
        await new.send(Large(2, 3))
        await plain.send(b"bytes")
        for _ in range(3):
            consumer.nack(await consumer.receive())
        letters = await client.subscribe("t-s-DLQ", "letters", schema=large)
        found = [await letters.receive() for _ in range(3)]
        assert [each.value for each in found[:2]] == [Large(1, 9), Large(2, 3)]
        assert [each.schema_version is None for each in found] == [False, False, True]
        assert found[2].data == b"bytes"


async def test_a_letter_that_cannot_have_the_schema_comes_without_it(
    autojump_clock: MockClock,
) -> None:
    policy = DeadLetterPolicy(0, topic="letters", initial_subscription="l")
    async with one_client() as (_, client):
        await client.create_producer("letters", schema=schemas.STRING)
        producer = await client.create_producer("t", schema=schemas.avro(Small))
        consumer = await client.subscribe("t", "s", type="shared", dead_letter=policy)
        letters = await client.subscribe("letters", "l")
        await producer.send(Small(1))
        consumer.nack(await consumer.receive())
        letter = await letters.receive()
        assert (letter.data, letter.schema_version) == (schemas.avro(Small).encode(Small(1)), None)


async def test_a_typed_table_view(autojump_clock: MockClock) -> None:
    async with one_client() as (_, client):
        producer = await client.create_producer("t", schema=schemas.avro(Small))
        await producer.send(Small(1), key="a")
        async with await client.table_view("t", schema=schemas.avro(Small)) as view:
            assert dict(view) == {"a": Small(1)}
            plain = await client.create_producer("t")
            await plain.send(b"\xff" * 12, key="a")
            await producer.send(Small(2), key="b")
            await view.wait_caught_up()
            assert (dict(view), view.unreadable) == ({"b": Small(2)}, 1)


async def test_what_is_no_schema_is_refused_with_an_example() -> None:
    async with one_client() as (_, client):
        for wrong, said in ((Small, r"schemas\.json\(Small\)"), ("json", "daybook.schemas")):
            with pytest.raises(TypeError, match=said):
                await client.create_producer("t", schema=wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=said):
                await client.subscribe("t", "s", schema=wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=said):
                await client.create_reader("t", schema=wrong)  # type: ignore[arg-type]
