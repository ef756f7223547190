"""Schemas over raw frames: producers, consumers, GET_SCHEMA, GET_OR_CREATE_SCHEMA."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.protocol.schemas.compatibility import Strategy
from daybook.broker.schemas.records import locator_path
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.test_policies import change
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

NAME = TopicName.parse(TOPIC)


def record(*fields: str, **optional: int) -> bytes:
    """Return an Avro record of integers; those in `optional` have defaults."""
    members: list[dict[str, Any]] = [{"name": each, "type": "int"} for each in fields]
    members += [{"name": n, "type": "int", "default": value} for n, value in optional.items()]
    return json.dumps({"type": "record", "name": "R", "fields": members}).encode()


def schema(data: bytes = b"", kind: int = pb.Schema.Avro, **properties: str) -> pb.Schema:
    found = pb.Schema(name="s", schema_data=data, type=kind)  # type: ignore[arg-type]
    for key, value in properties.items():
        found.properties.add(key=key, value=value)
    return found


A = schema(record("a"))
A_B = schema(record("a", b=1))  # A and A_B read each other
B = schema(record("b"))
STRING = schema(kind=pb.Schema.String)


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[tuple[Cluster, Client]]:
    async with open_broker(**options) as cluster:
        yield cluster, await cluster.client()


async def ask(client: Client, version: int | bytes | None = None, topic: str = TOPIC) -> Any:
    request = pb.CommandGetSchema(topic=topic)
    if version is not None:
        request.schema_version = version.to_bytes(8, "big") if isinstance(version, int) else version
    return await client.ask(request, pb.CommandGetSchemaResponse)


async def create(client: Client, wanted: pb.Schema, topic: str = TOPIC) -> Any:
    request = pb.CommandGetOrCreateSchema(topic=topic, schema=wanted)
    return await client.ask(request, pb.CommandGetOrCreateSchemaResponse)


def is_refused(answer: Any) -> bool:
    return isinstance(answer, pb.CommandError) and answer.error == pb.IncompatibleSchema


DEFAULTS: dict[str, Any] = {
    "schema_compatibility": "FULL",
    "schema_auto_update_allowed": True,
    "schema_validation_enforced": False,
}


async def apply(cluster: Cluster, **policies: Any) -> None:
    """Put these policies of the namespace into force, and no others."""
    await change(cluster, **{**DEFAULTS, **policies})


async def test_a_producers_schema_becomes_a_version(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        assert (await client.producer(1, schema=A)).schema_version == bytes(8)
        assert (await client.producer(2, schema=A_B)).schema_version == bytes(7) + b"\1"
        assert (await client.producer(3, schema=A)).schema_version == bytes(8)
        assert (await client.producer(4)).schema_version == b""
        assert cluster.broker.schema_ledgers.written == 2


async def test_the_same_schema_in_other_words_is_the_same_version(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (cluster, client):
        await client.producer(1, schema=A)
        words = json.loads(A.schema_data)
        words["doc"] = "with documentation"
        words["fields"][0]["type"] = {"type": "int"}
        other = schema(json.dumps(words, indent=2).encode(), __alwaysAllowNull="true")
        assert (await client.producer(2, schema=other)).schema_version == bytes(8)
        assert cluster.broker.schema_ledgers.written == 1


async def test_an_incompatible_producer_is_refused_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (cluster, client):
        await client.producer(1, schema=A)
        answer = await client.producer(2, schema=B)
        assert is_refused(answer)
        assert "field 'b' of 'R'" in answer.message
        assert is_refused(await client.producer(3, schema=STRING))
        assert cluster.broker.schema_ledgers.written == 1
        assert (await client.producer(4, schema=A)).schema_version == bytes(8)


async def test_the_reconnected_producer_and_the_waiting_one_get_their_version(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, client):
        mode: Any = pb.WaitForExclusive
        await client.producer(1, schema=A, producer_access_mode=mode)
        client.tell(
            pb.CommandProducer(
                topic=TOPIC, producer_id=2, request_id=7, schema=A_B, producer_access_mode=mode
            )
        )
        while not (
            found := [b for b in client.bodies(pb.CommandProducerSuccess) if b.request_id == 7]
        ):
            await client.wait_more()
        (waits,) = found
        assert not waits.producer_ready
        assert waits.schema_version == bytes(7) + b"\1"


async def test_partitions_share_the_schema_of_their_topic(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        cluster.broker.policies.partition_counts[TOPIC] = 2
        first, second = f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"
        await client.producer(1, topic=first, schema=A)
        assert is_refused(await client.producer(2, topic=second, schema=B))
        assert (await ask(client, topic=second)).schema.schema_data == A.schema_data
        assert (await ask(client)).schema.name == "public/default/t"


# -- policies


async def test_each_strategy_of_the_namespace_is_followed(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        await client.producer(1, schema=A)
        for strategy, wanted, allowed in (
            (Strategy.ALWAYS_INCOMPATIBLE, A_B, False),
            (Strategy.BACKWARD, B, False),
            (Strategy.BACKWARD, schema(record()), True),
            (Strategy.FORWARD, schema(record("a", "c")), True),
            (Strategy.ALWAYS_COMPATIBLE, STRING, True),
        ):
            await apply(cluster, schema_compatibility=strategy.value)
            answer = await client.producer(2, schema=wanted)
            assert is_refused(answer) is not allowed, (strategy, answer)


async def test_without_automatic_updates_only_known_schemas_are_allowed(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (cluster, client):
        await apply(cluster, schema_auto_update_allowed=False)
        answer = await client.producer(1, schema=A)
        assert is_refused(answer)
        assert "daybook schemas upload" in answer.message
        await apply(cluster)
        await client.producer(2, schema=A)
        await apply(cluster, schema_auto_update_allowed=False)
        assert (await client.producer(3, schema=A)).schema_version == bytes(8)
        assert is_refused(await client.producer(4, schema=A_B))


async def test_an_enforced_schema_refuses_producers_without_one(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        await apply(cluster, schema_validation_enforced=True)
        assert (await client.producer(1)).schema_version == b""  # The topic has none yet.
        await client.producer(2, schema=A)
        answer = await client.producer(3)
        assert is_refused(answer)
        assert "schemaValidationEnforced" in answer.message
        await apply(cluster)
        assert (await client.producer(4)).schema_version == b""


# -- consumers


async def test_a_consumer_brings_the_schema_of_a_topic_that_was_never_used(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (cluster, client):
        assert isinstance(await client.subscribe(1, schema=A), pb.CommandSuccess)
        assert (await ask(client)).schema_version == bytes(8)
        assert cluster.broker.schema_ledgers.written == 1


async def test_a_consumer_has_to_read_the_latest_schema(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        await client.producer(1, schema=A)
        assert isinstance(await client.subscribe(1, schema=A_B), pb.CommandSuccess)
        assert isinstance(
            await client.subscribe(2, name="2", schema=schema(record())), pb.CommandSuccess
        )
        assert is_refused(await client.subscribe(3, name="3", schema=B))
        assert is_refused(await client.subscribe(3, name="3", schema=STRING))
        # It reads, and registers nothing.
        assert cluster.broker.schema_ledgers.written == 1
        assert isinstance(await client.subscribe(4, name="4"), pb.CommandSuccess)
        auto = schema(kind=pb.Schema.AutoConsume)
        assert isinstance(await client.subscribe(5, name="5", schema=auto), pb.CommandSuccess)


@pytest.mark.parametrize("used_by", ["producer", "message", "consumer"])
async def test_a_consumer_cannot_type_a_topic_of_bytes(
    used_by: str, autojump_clock: MockClock
) -> None:
    async with opened() as (_, client):
        if used_by == "consumer":
            await client.subscribe(9, name="plain")
        else:
            await client.producer(1)
        if used_by == "message":
            client.send(1)
            await client.receipts(1)
            await client.ask(pb.CommandCloseProducer(producer_id=1), pb.CommandSuccess)
        answer = await client.subscribe(1, schema=A)
        assert is_refused(answer)
        assert "without a schema" in answer.message


async def test_a_consumer_of_anything_does_not_make_a_topic_one_of_bytes(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, client):
        await client.subscribe(9, name="any", schema=schema(kind=pb.Schema.AutoConsume))
        assert isinstance(await client.subscribe(1, schema=A), pb.CommandSuccess)


# -- GET_SCHEMA and GET_OR_CREATE_SCHEMA


async def test_a_version_is_found_and_the_latest_without_one(autojump_clock: MockClock) -> None:
    async with opened() as (_, client):
        await client.producer(1, schema=A)
        await client.producer(2, schema=schema(A_B.schema_data, owner="me"))
        latest = await ask(client)
        assert latest.schema_version == bytes(7) + b"\1"
        assert (latest.schema.type, latest.schema.schema_data) == (A_B.type, A_B.schema_data)
        assert [(p.key, p.value) for p in latest.schema.properties] == [("owner", "me")]
        assert not latest.HasField("error_code")
        assert (await ask(client, 0)).schema.schema_data == A.schema_data


async def test_what_is_asked_wrongly_is_told_apart(autojump_clock: MockClock) -> None:
    async with opened() as (_, client):
        assert (await ask(client)).error_code == pb.TopicNotFound
        await client.producer(1, schema=A)
        assert (await ask(client, 1)).error_code == pb.TopicNotFound
        assert (await ask(client, -1 & (1 << 64) - 1)).error_code == pb.TopicNotFound
        assert (await ask(client, b"")).error_code == pb.IncompatibleSchema
        assert (await ask(client, b"abc")).error_code == pb.IncompatibleSchema
        assert (await ask(client, topic="a//b")).error_code == pb.InvalidTopicName
        old = await ask(client, bytes(64))  # the form of clients before Pulsar 2.4
        assert old.schema.schema_data == A.schema_data


async def test_get_or_create_adds_as_a_producer_does(autojump_clock: MockClock) -> None:
    async with opened() as (_, client):
        nothing = await create(client, schema(kind=pb.Schema.NoSchema))
        assert nothing.schema_version == b""
        assert not nothing.HasField("error_code")
        assert (await create(client, A)).error_code == pb.TopicNotFound  # It does not exist.
        await client.producer(1)
        assert (await create(client, A)).schema_version == bytes(8)
        assert (await create(client, A_B)).schema_version == bytes(7) + b"\1"
        assert (await create(client, A)).schema_version == bytes(8)
        assert (await create(client, B)).error_code == pb.IncompatibleSchema


async def test_a_broker_that_does_not_serve_the_topic_answers_questions_only(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (cluster, client):
        await client.producer(1, schema=A)
        cluster.broker.ownership.ours = False
        bundle = cluster.broker.policies.known_bundle_of(NAME)
        assert bundle is not None
        cluster.broker.topics.drop_bundle(bundle)
        assert (await ask(client)).schema.schema_data == A.schema_data
        assert (await create(client, A)).error_code == pb.ServiceNotReady


# -- bad input


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (schema(b"{"), "not JSON"),
        (schema(b"[" * 100_000), "nested too deeply"),
        (schema(b'{"type":"array","items":' * 100 + b'"int"' + b"}" * 100), "64 levels"),
        (schema(b'{"type":"record","name":"R"}'), "no list of fields"),
        (schema(b'"string' + b" " * (2 << 20)), "schema_bytes_max"),
        (schema(b"data", kind=pb.Schema.Int32), "has no data"),
        (schema(b"\0\0\0", kind=pb.Schema.KeyValue), "ends before"),
        (schema(b"{}", kind=pb.Schema.ProtobufNative), "Protobuf descriptor"),
        (schema(kind=pb.Schema.External), "cannot be stored"),
        (schema(record("a"), owner="v" * 70_000), "properties"),
    ],
)
async def test_a_schema_that_is_not_valid_is_refused(
    wanted: pb.Schema, why: str, autojump_clock: MockClock
) -> None:
    async with opened() as (cluster, client):
        answer = await client.producer(1, schema=wanted)
        assert is_refused(answer)
        assert why in answer.message
        assert is_refused(await client.subscribe(1, schema=wanted))
        assert not cluster.broker.schema_ledgers.written


async def test_a_topic_has_a_bounded_number_of_versions(autojump_clock: MockClock) -> None:
    async with opened(settings={"schema_versions_max": 3}) as (cluster, client):
        for number in range(3):
            optional = {f"f{n}": 0 for n in range(number + 1)}
            await client.producer(number, schema=schema(record("a", **optional)))
        answer = await client.producer(9, schema=schema(record("a", last=1)))
        assert is_refused(answer)
        assert "schema_versions_max" in answer.message
        assert cluster.broker.schema_ledgers.written == 3
        assert (await client.producer(10, schema=schema(record("a", f0=0)))).schema_version


async def test_one_of_a_thousand_producers_adds_the_version(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        for number in range(100):
            client.tell(
                pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number, schema=A)
            )
        answers = await client.wait(pb.CommandProducerSuccess, 100)
        assert {answer.schema_version for answer in answers} == {bytes(8)}
        assert cluster.broker.schema_ledgers.written == 1


async def test_a_version_is_added_even_if_its_producer_gives_up(autojump_clock: MockClock) -> None:
    async with opened() as (cluster, client):
        client.tell(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, schema=A))
        client.frames.close("the client dies")
        await trio.sleep(1)
        record = await cluster.broker.session.get(locator_path(NAME))
        ledgers = cluster.broker.schema_ledgers.entries
        # Either nothing was begun, or it was completed: no ledger without a record.
        assert bool(record) == bool(ledgers)
