"""Partitions that are added: the record, the new logs and their cursors, all or nothing."""

from typing import Any

import pytest
from trio.testing import MockClock

from daybook.broker.errors import ConflictError, NotFoundError, PreconditionError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.topics import growth
from daybook.broker.topics.growth import grow, stored_subscriptions
from daybook.managed_ledger.records import cursor_path, log_path, parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.topics import TopicName
from tests.harness.clocks import VirtualClock

NS = "public/default"
TOPIC = TopicName.parse("orders")
PATH = records.partitioned_path(TOPIC)


class World:
    """A metadata store with a topic of three partitions, two of which have subscriptions."""

    def __init__(self) -> None:
        self.memory = MemoryStore(VirtualClock())
        self.store: MemorySession = self.memory.session("broker")

    async def fill(self, *, partitions: int = 3) -> None:
        await self.store.create(records.policies_path(NS), b"{}", make_parents=True)
        await self.store.create(
            PATH,
            records.encode(PartitionedTopic(partitions, properties={"a": "b"})),
            make_parents=True,
        )
        await self.subscribe(0, "s", color="red")
        await self.subscribe(1, "s")
        await self.subscribe(1, "a/b c")
        await self.subscribe(1, "pulsar.dedup")

    async def subscribe(self, partition: int, name: str, **properties: str) -> None:
        log = TOPIC.partition_name(partition).managed_ledger_name
        if await self.store.get(log_path(log)) is None:
            await self.store.create(log_path(log), b"", make_parents=True)
        info = ManagedCursorInfo(cursorsLedgerId=7, markDeleteLedgerId=5, markDeleteEntryId=3)
        for key, value in properties.items():
            info.cursorProperties.add(name=key, value=value)
        await self.store.create(cursor_path(log, name), info.SerializeToString())

    async def count(self) -> int:
        record = await self.store.get(PATH)
        assert record is not None
        return records.decode(PartitionedTopic, record.value).partitions

    async def cursors(self, partition: int) -> list[str] | None:
        return await self.store.get_children(
            log_path(TOPIC.partition_name(partition).managed_ledger_name)
        )

    async def grow(self, to: int, *, force: bool = False) -> Any:
        def check(present: PartitionedTopic) -> int:
            if to < present.partitions:
                raise PreconditionError("it cannot fall")
            return to

        return await grow(self.store, TOPIC, check, force=force)


async def test_new_partitions_have_the_subscriptions_from_their_beginning(
    autojump_clock: MockClock,
) -> None:
    world = World()
    await world.fill()
    new, subscriptions = await world.grow(5)
    assert new == range(3, 5)
    assert subscriptions == {"s": {"color": "red"}, "a/b c": {}}
    for index in new:
        assert await world.cursors(index) == ["a%2Fb+c", "s"]
        log = TOPIC.partition_name(index).managed_ledger_name
        record = await world.store.get(cursor_path(log, "s"))
        assert record is not None
        info = parse(ManagedCursorInfo(), record.value, "")
        assert (info.markDeleteLedgerId, info.markDeleteEntryId) == (0, -1)
        assert [(p.name, p.value) for p in info.cursorProperties] == [("color", "red")]
    record = await world.store.get(PATH)
    assert record is not None
    assert records.decode(PartitionedTopic, record.value) == PartitionedTopic(
        5, properties={"a": "b"}
    )


async def test_a_topic_without_subscriptions_gets_only_a_larger_number(
    autojump_clock: MockClock,
) -> None:
    world = World()
    await world.fill()
    for partition, name in ((0, "s"), (1, "s"), (1, "a/b c")):
        log = TOPIC.partition_name(partition).managed_ledger_name
        await world.store.delete(cursor_path(log, name), -1)
    await world.grow(4)
    assert await world.count() == 4
    assert await world.cursors(3) is None


@pytest.mark.parametrize("applied", [True, False])
async def test_a_request_without_an_answer_is_found_out_about(
    autojump_clock: MockClock, applied: bool
) -> None:
    world = World()
    await world.fill()
    multi = world.store.multi

    async def losing(operations: Any) -> Any:
        world.store.multi = multi  # type: ignore[method-assign]
        world.store.link.lose_next(applied=applied)  # type: ignore[attr-defined]
        return await multi(operations)

    world.store.multi = losing  # type: ignore[method-assign]
    new, subscriptions = await world.grow(5)
    assert (new, set(subscriptions)) == (range(3, 5), {"s", "a/b c"})
    assert await world.count() == 5
    assert await world.cursors(4) == ["a%2Fb+c", "s"]


async def test_a_request_that_is_carried_out_late_is_no_conflict(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    await world.fill()
    taken = growth._taken

    async def late(*args: Any) -> Any:
        monkeypatch.setattr(growth, "_taken", taken)
        await world.grow(5)
        return await taken(*args)

    monkeypatch.setattr(growth, "_taken", late)
    await world.grow(5)
    assert await world.count() == 5


async def test_a_topic_that_has_the_name_of_a_new_partition_is_in_the_way(
    autojump_clock: MockClock,
) -> None:
    world = World()
    await world.fill()
    await world.subscribe(4, "own")
    with pytest.raises(ConflictError, match="partition-4"):
        await world.grow(6)
    assert await world.count() == 3
    assert await world.cursors(3) is None
    await world.grow(6, force=True)
    assert await world.count() == 6
    assert [await world.cursors(index) for index in (3, 4)] == [["a%2Fb+c", "s"], ["own"]]


async def test_the_number_of_partitions_never_falls(autojump_clock: MockClock) -> None:
    world = World()
    await world.fill()
    with pytest.raises(PreconditionError):
        await world.grow(2)
    assert (await world.grow(3))[0] == range(3, 3)
    assert await world.count() == 3


async def test_what_is_too_much_for_one_request_is_done_in_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "REQUEST_BYTES_MAX", growth._ROOM_BYTES + 1_000)
    monkeypatch.setattr(growth, "_CONFLICTS_MAX", 1)
    world = World()
    await world.fill()
    requests: list[int] = []
    multi = world.store.multi

    async def counting(operations: Any) -> Any:
        requests.append(len(operations))
        assert await world.count() == 3 or await world.cursors(await world.count() - 1)
        return await multi(operations)

    world.store.multi = counting  # type: ignore[method-assign]
    assert (await world.grow(9))[0] == range(3, 9)
    assert await world.count() == 9
    assert len(requests) > 2
    assert all([await world.cursors(index) for index in range(3, 9)])


async def test_a_topic_does_not_grow_while_its_namespace_is_deleted(
    autojump_clock: MockClock,
) -> None:
    world = World()
    await world.fill()
    multi = world.store.multi

    async def deleting(operations: Any) -> Any:
        world.store.multi = multi  # type: ignore[method-assign]
        await world.store.set(records.policies_path(NS), b'{"deleted":true}', -1)
        return await multi(operations)

    world.store.multi = deleting  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="being deleted"):
        await world.grow(5)
    assert await world.count() == 3


async def test_two_that_grow_a_topic_at_once_agree(autojump_clock: MockClock) -> None:
    world = World()
    await world.fill()
    multi = world.store.multi

    async def beaten(operations: Any) -> Any:
        world.store.multi = multi  # type: ignore[method-assign]
        await world.grow(4)
        return await multi(operations)

    world.store.multi = beaten  # type: ignore[method-assign]
    assert (await world.grow(6))[0] == range(3, 6)
    assert await world.count() == 6
    assert all([await world.cursors(index) for index in range(3, 6)])


async def test_errors_of_the_store_are_told(autojump_clock: MockClock) -> None:
    world = World()
    with pytest.raises(NotFoundError):
        await world.grow(3)
    await world.fill()
    world.memory.suspend()
    with pytest.raises(UnavailableError):
        await world.grow(5)


async def test_subscriptions_of_any_partition_count(autojump_clock: MockClock) -> None:
    world = World()
    await world.fill()
    found = await stored_subscriptions(world.store, TOPIC, 3)
    assert found == {"s": {"color": "red"}, "a/b c": {}}
