"""A broker joins only with the ledgers that hold the topics of its metadata store."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from daybook.bookie.registry.instance import PATH, InstanceRecord
from daybook.broker.config import BrokerConfig
from daybook.broker.errors import CannotJoinError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import GuardRecord
from daybook.broker.server import RunningBroker, run_broker
from daybook.managed_ledger.records import INSTANCE, get_property, log_path
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.metadata.memory import MemorySession
from daybook.wire.metadata.store import ANY
from tests.harness.clocks import VirtualClock
from tests.managed_ledger.world import Host, World, append, play, until
from tests.simulation.host_log import HostLogs

OTHER = "/other"


class Brokers:
    def __init__(self, world: World) -> None:
        self.world = world

    def config(self, host: str, root: str = "/ledgers", **more: object) -> BrokerConfig:
        values = {"host": host, "ledgers_root": root, **more}
        return msgspec.convert(values, BrokerConfig)

    @asynccontextmanager
    async def running(
        self, host: str, root: str = "/ledgers", **more: object
    ) -> AsyncGenerator[RunningBroker]:
        session = self.world.metadata.session(host)
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[RunningBroker]) -> None:
                await run_broker(
                    self.config(host, root, **more),
                    store=session,
                    network=self.world.network.of(host),
                    clock=VirtualClock(),
                    rng=self.world.rng,
                    task_status=task_status,
                )

            yield await nursery.start(serve)
            nursery.cancel_scope.cancel()

    async def refused(self, host: str, root: str = "/ledgers") -> str:
        """Start a broker that must fail; return its message."""
        with pytest.raises(BaseExceptionGroup) as caught:
            async with self.running(host, root):
                pass
        error: BaseException = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, CannotJoinError), error
        return str(error)


def scenario_with_brokers(
    scenario: Callable[[World, Brokers, MemorySession], Awaitable[None]],
) -> None:
    async def run(world: World) -> None:
        await scenario(world, Brokers(world), world.metadata.session("looking"))

    play(run)


async def bound(looking: MemorySession) -> str | None:
    record = await looking.get(PATH)
    return (
        None
        if record is None
        else msgspec.json.decode(record.value, type=InstanceRecord).instance_id
    )


async def instance_at(looking: MemorySession, root: str = "/ledgers") -> str:
    record = await looking.get(f"{root}/INSTANCEID")
    assert record is not None
    return record.value.decode()


async def other_bookies(world: World) -> None:
    for number in range(1, 4):
        await world.add_bookie(f"other-{number}", root=OTHER)


def everything(world: World) -> dict[str, tuple[bytes, int]]:
    """Return all records of the metadata store except those of sessions."""
    nodes = world.metadata.tree._nodes
    return {
        path: (node.value, node.version)
        for path, node in nodes.items()
        if not path.startswith("/other")
    }


def test_a_broker_with_another_root_does_not_join() -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        await other_bookies(world)
        async with brokers.running("broker-1") as first, world.host("h") as host:
            assert await bound(looking) == await instance_at(looking)
            await append(await host.open(), range(3))
            before = everything(world)
            said = await brokers.refused("broker-2", OTHER)
            ours, theirs = await instance_at(looking), await instance_at(looking, OTHER)
            for each in (ours, theirs, OTHER, "127.0.0.1:2181", "daybook cluster show"):
                assert each in said
            assert everything(world) == before  # Nothing was touched.
            assert first.ownership.identity.broker_id in (
                await looking.get_children(records.BROKERS) or []
            )
            async with brokers.running("broker-3"):
                pass

    scenario_with_brokers(scenario)


def test_a_root_without_ledgers_is_not_made_if_the_topics_are_bound() -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        async with brokers.running("broker-1"):
            said = await brokers.refused("broker-2", "/nowhere")
            assert "no bookie has started" in said
            assert await looking.get("/nowhere") is None

    scenario_with_brokers(scenario)


def test_lists_of_other_ledgers_are_not_bound_by_accident() -> None:
    """An upgrade: topics exist, the record does not, and the first broker has the wrong root."""

    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        await other_bookies(world)
        async with world.host("h") as host, world.host("o", root=OTHER) as other:
            await append(await host.open(), range(3))
            # The last ledger of the topic does not exist there.
            missing = await brokers.refused("broker-1", OTHER)
            await other.open(name="t/n/persistent/b")
            foreign = await brokers.refused("broker-1", OTHER)
            nowhere = await brokers.refused("broker-1", "/nowhere")
            for said in (missing, foreign, nowhere):
                assert "t/n/persistent/a" in said
                assert "daybook cluster bind --ledgers-root" in said
            assert "belongs to t/n/persistent/b" in foreign
            assert await bound(looking) is None
            assert await looking.get("/nowhere") is None
            await host.store.delete(log_path("t/n/persistent/b"), ANY)
            async with brokers.running("broker-1"):
                assert await bound(looking) == await instance_at(looking)

    scenario_with_brokers(scenario)


def test_a_list_names_its_instance_from_its_next_write_on_and_is_refused_elsewhere() -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        async with world.host("h") as host:
            log = await host.open()
            assert await said_by_list(host) is None
            log.abandon()
            host.logs.bind("one")
            log = await host.open()
            assert await said_by_list(host) == "one"
            await append(log, range(7))
            log.abandon()
            before = await world.list_of(host)
            host.logs.bind("two")
            with pytest.raises(Exception, match="belongs to the instance one") as caught:
                await host.open()
            assert type(caught.value).__name__ == "LogCorruptError"
            assert await world.list_of(host) == before
            host.logs.bind("one")
            await host.open()
            await host.logs.create("t/n/persistent/c")
            assert await said_by_list(host, "t/n/persistent/c") == "one"

    scenario_with_brokers(scenario)


async def said_by_list(host: Host, name: str = "t/n/persistent/a") -> str | None:
    record = await host.store.get(log_path(name))
    assert record is not None
    return get_property(ManagedLedgerInfo.FromString(record.value).properties, INSTANCE)


def test_a_broker_of_another_instance_that_is_there_keeps_a_broker_away() -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        async with brokers.running("broker-1"):
            (name,) = await looking.get_children(records.GUARDS) or []
            record = await looking.get(f"{records.GUARDS}/{name}")
            assert record is not None
            guard = records.decode(GuardRecord, record.value)
            assert guard.instance == await instance_at(looking)
            old = GuardRecord("old:8080", "1")  # An older broker announces nothing.
            await looking.create(f"{records.GUARDS}/old", records.encode(old), ephemeral=True)
            async with brokers.running("broker-2"):
                pass
            other = GuardRecord("far:8080", "2", instance="another")
            await looking.create(f"{records.GUARDS}/far", records.encode(other), ephemeral=True)
            said = await brokers.refused("broker-3")
            assert "far:8080" in said
            assert "another" in said

    scenario_with_brokers(scenario)


def test_a_broker_whose_topics_were_bound_elsewhere_does_not_join_again() -> None:
    """Its session is lost, and the topics are bound to other ledgers meanwhile."""

    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        async def live() -> None:
            async with brokers.running("broker-1") as first:
                await lose_twice(first)
                await trio.sleep(60)

        async def lose_twice(first: RunningBroker) -> None:
            session = first.ownership._store
            assert isinstance(session, MemorySession)
            record = await looking.get(PATH)
            assert record is not None
            # The record is the same again: the broker may join.
            await looking.set(PATH, record.value, ANY)
            world.metadata.expire(session.store_session_id)
            await until(lambda: first.ownership._protocol.term > 1)
            await trio.sleep(5)
            assert await looking.get_children(records.BROKERS)
            other = msgspec.json.encode(InstanceRecord("another"))
            await looking.set(PATH, other, ANY)
            world.metadata.expire(session.store_session_id)

        with pytest.raises(BaseExceptionGroup) as caught:
            await live()
        assert caught.group_contains(CannotJoinError, match="another")
        assert not await looking.get_children(records.BROKERS)

    scenario_with_brokers(scenario)


@pytest.mark.parametrize("value", [b"{", b'{"instanceId":"x","version":2}'])
def test_a_record_that_cannot_be_understood_ends_the_start(value: bytes) -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        await looking.create(PATH, value, make_parents=True)
        said = await brokers.refused("broker-1")
        assert PATH in said
        record = await looking.get(PATH)
        assert record is not None
        assert record.value == value

    scenario_with_brokers(scenario)


def test_a_bookie_of_other_ledgers_than_those_of_the_topics_says_so() -> None:
    async def scenario(world: World, brokers: Brokers, looking: MemorySession) -> None:
        logs = HostLogs()
        async with brokers.running("broker-1"):
            await world.add_bookie("bookie-4", log=logs.of("bookie-4").structured())
            assert not any("no topics are kept" in line for line in logs.lines)
            await world.add_bookie("other-1", root=OTHER, log=logs.of("other-1").structured())
            assert any("no topics are kept" in line for line in logs.lines)

    scenario_with_brokers(scenario)
