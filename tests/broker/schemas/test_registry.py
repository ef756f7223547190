"""The registry over real ledgers and bookies, in virtual time: races, crashes, losses, orphans."""

import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
import trio

from daybook.bookie.ledger.client import Quorums
from daybook.broker.errors import (
    BrokerError,
    IncompatibleSchemaError,
    StorageFailedError,
    UnavailableError,
)
from daybook.broker.limits import SchemaLimits
from daybook.broker.protocol.schemas.compatibility import SchemaRules, Strategy
from daybook.broker.protocol.schemas.schema import AVRO, Schema
from daybook.broker.schemas import registry as registry_module
from daybook.broker.schemas.ledgers import SchemaLedgers
from daybook.broker.schemas.orphans import SchemaOrphans
from daybook.broker.schemas.records import (
    custom_metadata,
    decode_locator,
    index_entry,
    locator_path,
    schema_id,
)
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.managed_ledger.records import custom_metadata as topic_metadata
from daybook.wire.logging import silent_log
from daybook.wire.metadata.store import ANY
from daybook.wire.topics import TopicName
from tests.harness.clocks import VirtualClock
from tests.managed_ledger.world import TREE, Host, World, play, until

TOPIC = TopicName.parse("persistent://public/default/t")
PATH = locator_path(TOPIC)
ANYTHING = SchemaRules(Strategy.ALWAYS_COMPATIBLE)
FULL = SchemaRules()


def schema(*names: str) -> Schema:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return Schema(AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}).encode())


A, B, C = schema("a"), schema("b"), schema("c")


@dataclass
class Broker:
    host: Host
    registry: SchemaRegistry
    world: World

    async def numbers(self) -> list[int]:
        return [each.version for each in await self.registry.versions(TOPIC)]

    async def ledgers(self) -> list[int]:
        return await self.world.ledgers(self.host)

    async def named(self) -> list[int]:
        record = await self.host.store.get(PATH)
        assert record is not None
        return [each.ledger_id for each in decode_locator(record.value, "t").all]

    async def orphans(self, age_s: float = 0.0) -> list[int]:
        removal = SchemaOrphans(self.host.store, self.host.client, VirtualClock())
        return list(
            await self.host.logs.remove_orphans(
                age_s=age_s, of_gone_logs=True, remove_other=removal.remove
            )
        )


@asynccontextmanager
async def broker(
    world: World, name: str = "one", *, tree: str = TREE, **limits: float
) -> AsyncGenerator[Broker]:
    async def quorums(_: TopicName) -> Quorums:
        return Quorums(3, 3, 2)

    async with world.host(name, tree=tree) as host, trio.open_nursery() as nursery:
        bounds = SchemaLimits(**limits)  # type: ignore[arg-type]
        ledgers = SchemaLedgers(host.client, quorums, lambda: host.logs.tree, bounds, silent_log())
        registry = SchemaRegistry(
            host.store,
            ledgers,
            VirtualClock(),
            versions_max=50,
            schema_bytes_max=1 << 20,
            limits=bounds,
        )
        await nursery.start(registry.run)
        yield Broker(host, registry, world)
        nursery.cancel_scope.cancel()


async def fails(kind: type[BrokerError], act: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        await act()  # type: ignore[misc]
    return str(caught.value)


# -- versions


def test_versions_are_read_by_another_broker() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            assert await one.registry.latest(TOPIC) is None
            assert await one.registry.add(TOPIC, A, FULL) == 0
            assert await one.registry.add(TOPIC, B, FULL) == 1
            assert await two.registry.add(TOPIC, A, FULL) == 0
            latest = await two.registry.latest(TOPIC)
            assert latest is not None
            assert (latest.version, latest.schema) == (1, B)
            assert await two.registry.find(TOPIC, A) == 0
            assert await two.registry.find(TOPIC, C) is None
            assert len(await one.ledgers()) == 2

    play(scenario)


def test_a_version_of_another_broker_is_found_although_the_server_is_behind() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            await one.registry.add(TOPIC, A, FULL)
            assert await two.registry.get(TOPIC, 0) is not None
            world.fall_behind(two.host)
            await one.registry.add(TOPIC, B, FULL)
            found = await two.registry.get(TOPIC, 1)
            assert found is not None
            assert found.schema == B
            assert await two.registry.get(TOPIC, 2) is None

    play(scenario)


def test_a_transitive_strategy_compares_with_all_versions() -> None:
    async def scenario(world: World) -> None:
        plain = json.dumps(
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
        )
        first = Schema(AVRO, plain.encode())
        bare = Schema(AVRO, plain.replace('{"name": "a", "type": "int"}', "").encode())
        async with broker(world) as one:
            add = one.registry.add
            await add(TOPIC, bare, ANYTHING)
            await add(TOPIC, A, ANYTHING)
            backward = SchemaRules(Strategy.BACKWARD)
            transitive = SchemaRules(Strategy.BACKWARD_TRANSITIVE)
            await fails(IncompatibleSchemaError, lambda: add(TOPIC, first, transitive))
            assert await add(TOPIC, first, backward) == 2

    play(scenario)


def test_a_deletion_hides_what_was_before_it() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            registry = one.registry
            await registry.add(TOPIC, A, FULL)
            assert await registry.delete(TOPIC) == 1
            assert await registry.latest(TOPIC) is None
            assert await registry.get(TOPIC, 0) is None
            assert not await registry.has_schema(TOPIC)
            other = Schema(AVRO, b'"string"')
            assert await registry.add(TOPIC, other, FULL) == 2
            assert await registry.get(TOPIC, 0) is None
            assert await one.numbers() == [2]

    play(scenario)


# -- two brokers at once


def test_two_brokers_that_add_at_once_get_versions_of_their_own() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            found: dict[str, int] = {}

            async def add(name: str, wanted: Schema, by: Broker) -> None:
                found[name] = await by.registry.add(TOPIC, wanted, ANYTHING)

            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(add, f"a{number}", schema("a", str(f"x{number}")), one)
                    nursery.start_soon(add, f"b{number}", schema("b", str(f"x{number}")), two)
                    nursery.start_soon(add, f"one{number}", C, one)
                    nursery.start_soon(add, f"two{number}", C, two)
            same = {found[name] for name in found if name.startswith(("one", "two"))}
            assert len(same) == 1
            assert sorted({*found.values()}) == list(range(11)) == await one.numbers()
            # The losers deleted their ledgers.
            assert sorted(await one.ledgers()) == sorted(await one.named())

    play(scenario)


@pytest.mark.parametrize("existing", [False, True])
def test_the_loser_is_checked_again(existing: bool) -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            if existing:
                await one.registry.add(TOPIC, schema("a", "b"), FULL)
            held = two.host.link.hold_next("multi")
            refusals: list[str] = []

            async def lose() -> None:
                wanted = Schema(AVRO, b'{"type":"record","name":"R","fields":[]}')
                refusals.append(
                    await fails(
                        IncompatibleSchemaError, lambda: two.registry.add(TOPIC, wanted, FULL)
                    )
                )

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose)
                await held.caught.wait()
                strict = json.dumps(
                    {"type": "record", "name": "R", "fields": [{"name": "z", "type": "int"}]}
                )
                await one.registry.add(TOPIC, Schema(AVRO, strict.encode()), ANYTHING)
                held.let_go()
            assert "'z'" in refusals[0]
            assert sorted(await one.ledgers()) == sorted(await one.named())

    play(scenario)


def test_a_broker_that_was_stopped_adds_nothing_to_a_record_that_was_made_again() -> None:
    """The new record has the version that the stopped broker knows."""

    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            await one.registry.add(TOPIC, A, FULL)
            held = two.host.link.hold_next("multi")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.registry.add, TOPIC, B, ANYTHING)
                await held.caught.wait()
                await one.registry.delete_all(TOPIC)
                assert await one.registry.add(TOPIC, C, FULL) == 0
                held.let_go()
            assert [v.schema for v in await one.registry.versions(TOPIC)] == [C, B]
            assert sorted(await one.ledgers()) == sorted(await one.named())

    play(scenario)


# -- answers that do not come


def test_an_addition_without_an_answer_is_looked_up() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            for wanted in (A, B):  # the first version, and one behind it
                held = one.host.link.hold_next("multi")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.registry.add, TOPIC, wanted, FULL)
                    await held.caught.wait()
                    held._execute()  # It is carried out, and its answer is lost.
                    one.host.store.suspend()
                    one.host.store.resume()
            assert await one.numbers() == [0, 1]
            assert sorted(await one.ledgers()) == sorted(await one.named())

    play(scenario)


def test_a_deletion_without_an_answer_is_looked_up() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            await one.registry.add(TOPIC, A, FULL)
            await one.registry.add(TOPIC, B, FULL)
            held = one.host.link.hold_next("multi")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.registry.delete_all, TOPIC)
                await held.caught.wait()
                held._execute()
                one.host.store.suspend()
                one.host.store.resume()
            assert await one.host.store.get(PATH) is None
            assert await one.ledgers() == []

    play(scenario)


def test_an_addition_whose_caller_gives_up_is_completed() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            held = one.host.link.hold_next("set", "/ledgers")  # the close of its ledger
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.registry.add, TOPIC, A, FULL)
                await held.caught.wait()
                nursery.cancel_scope.cancel()
            held.let_go()
            await until(lambda: not one.registry._locks)
            assert await one.numbers() == [0]

    play(scenario)


def test_without_bookies_the_addition_ends_and_leaves_no_ledger() -> None:
    async def scenario(world: World) -> None:
        async with broker(world, write_s=5.0) as one:
            await one.registry.add(TOPIC, A, FULL)
            for name in ("bookie-1", "bookie-2"):
                world.kill(name)
            await fails(UnavailableError, lambda: one.registry.add(TOPIC, B, FULL))
            assert await one.numbers() == [0]
            assert await one.ledgers() == await one.named()

    play(scenario)


# -- what is stored is wrong


def test_a_ledger_that_belongs_to_somebody_else_is_neither_read_nor_deleted() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            other = await one.host.client.create(
                Quorums(3, 3, 2), custom=topic_metadata("t/n/persistent/a")
            )
            await other.wait_confirmed(other.append([b"message"]))
            await one.registry.add(TOPIC, A, FULL)
            record = await one.host.store.get(PATH)
            assert record is not None
            added = index_entry(1, other.ledger_id, 0, b"h" * 32)
            value = decode_locator(record.value, "t").with_version(added)
            await one.host.store.set(PATH, value, ANY)
            reason = await fails(StorageFailedError, lambda: one.registry.latest(TOPIC))
            assert "managed-ledger" in reason
            assert not (await one.host.client.metadata(other.ledger_id)).closed
            await one.registry._ledgers.delete(TOPIC, other.ledger_id)
            assert other.ledger_id in await one.ledgers()

    play(scenario)


def test_a_lost_ledger_is_told_from_a_schema_that_does_not_exist() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            await one.registry.add(TOPIC, A, FULL)
            (lost,) = await one.named()
            await one.host.client.delete(lost)
            async with broker(world, "two") as two:
                latest = two.registry.latest
                assert "--force" in await fails(StorageFailedError, lambda: latest(TOPIC))
                add = two.registry.add
                assert "--force" in await fails(
                    StorageFailedError, lambda: add(TOPIC, Schema(1, b""), ANYTHING)
                )
                assert await two.registry.delete_all(TOPIC) == 0
                assert await add(TOPIC, B, FULL) == 0

    play(scenario)


# -- orphans


async def orphan(one: Broker, topic: TopicName = TOPIC, tree: str | None = TREE) -> int:
    """Leave the ledger of an addition whose broker died before the record named it."""
    custom = custom_metadata(schema_id(topic), tree)
    writer = await one.host.client.create(Quorums(3, 3, 2), custom=custom)
    await writer.close()
    return writer.ledger_id


def test_ledgers_of_schemas_that_no_record_names_are_removed() -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            await one.registry.add(TOPIC, A, FULL)
            await one.registry.add(TOPIC, B, FULL)
            await one.registry.delete(TOPIC)
            kept = await one.ledgers()
            gone = [
                await orphan(one),
                await orphan(one, TopicName.parse("public/default/never")),
                await orphan(one, TopicName.parse("nobody/nowhere/never")),
            ]
            foreign = [await orphan(one, tree=None), await orphan(one, tree="another")]
            assert await one.orphans(age_s=3600.0) == []
            assert await one.orphans() == gone
            assert await one.ledgers() == [*kept, *foreign]
            assert await one.orphans() == []
            # The proof of an absence leaves nothing behind.
            assert await one.host.store.get("/schemas/nobody") is None
            assert await one.host.store.get_children("/schemas/public/default") == ["t"]
            assert await one.registry.add(TOPIC, A, FULL) == 3

    play(scenario)


@pytest.mark.parametrize("existing", [False, True])
def test_a_ledger_that_is_about_to_be_named_is_not_lost(existing: bool) -> None:
    """Either the removal fails, or the addition does, and is repeated with a new ledger."""

    async def scenario(world: World) -> None:
        async with broker(world) as one, broker(world, "two") as two:
            if existing:
                await one.registry.add(TOPIC, A, FULL)
            removed: list[int] = []

            async def remove() -> None:
                removed.extend(await two.orphans())

            # First, the removal is decided, and the addition comes before it.
            held = two.host.link.hold_next("multi")
            adding = one.host.link.hold_next("multi")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.registry.add, TOPIC, B, FULL)
                await adding.caught.wait()
                nursery.start_soon(remove)
                await held.caught.wait()
                adding.let_go()
                await until(lambda: not one.registry._locks)
                held.let_go()
            assert not removed
            # Then the removal comes first.
            adding = one.host.link.hold_next("multi")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.registry.add, TOPIC, C, FULL)
                await adding.caught.wait()
                await remove()
                adding.let_go()
            assert len(removed) == 1
            schemas = [each.schema for each in await two.registry.versions(TOPIC)]
            assert schemas == ([A, B, C] if existing else [B, C])
            assert sorted(await one.ledgers()) == sorted(await one.named())

    play(scenario)


# -- work that takes the processor for long


@contextmanager
def _seen(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> Generator[list[int]]:
    """Note how many steps of tasks had run when each call of this function began."""
    seen = list[int]()
    original = getattr(registry_module, name)

    def noted(*given: object) -> object:
        seen.append(world.run.policy.steps)
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(registry_module, name, noted)
        yield seen


def test_other_tasks_run_between_the_comparisons_of_a_new_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            topics = [TopicName.parse(f"persistent://public/default/t{n}") for n in range(3)]
            for topic in topics:
                for number in range(5):
                    await one.registry.add(topic, schema(f"x{number}"), ANYTHING)
            # Many requests for several topics are no faster than one.
            with _seen(world, monkeypatch, "check") as seen:
                async with trio.open_nursery() as nursery:
                    for topic in topics:
                        nursery.start_soon(one.registry.check, topic, A, Strategy.FULL_TRANSITIVE)
            assert len(seen) == 15
            assert all(after - before >= 10 for before, after in pairwise(seen))

    play(scenario)


def test_other_tasks_run_before_a_large_schema_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            large = [schema(*(f"{letter}{n}" for n in range(300))) for letter in "abcde"]
            with _seen(world, monkeypatch, "examine") as seen:
                async with trio.open_nursery() as nursery:
                    for each in large:
                        nursery.start_soon(one.registry.find, TOPIC, each)
            assert not seen  # The topic has no schema.
            await one.registry.add(TOPIC, large[0], ANYTHING)
            with _seen(world, monkeypatch, "examine") as seen:
                async with trio.open_nursery() as nursery:
                    for each in large:
                        nursery.start_soon(one.registry.find, TOPIC, each)
            assert len(seen) == 5  # The first is known by its text, and parsed to be compared.
            assert all(after - before >= 10 for before, after in pairwise(seen))

    play(scenario)


def test_a_schema_that_the_topic_has_is_found_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async with broker(world) as one:
            assert await one.registry.add(TOPIC, A, FULL) == 0
            with (
                _seen(world, monkeypatch, "examine") as parsed,
                _seen(world, monkeypatch, "check") as compared,
            ):
                assert await one.registry.add(TOPIC, A, FULL) == 0
                assert await one.registry.find(TOPIC, A) == 0
            assert not parsed
            assert not compared

    play(scenario)
