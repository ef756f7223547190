"""The deletion of a namespace, while it is refused, given up, or met by a creation."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from daybook.broker.admin.message_ids import Start
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import BrokerError, ConflictError, UnavailableError
from daybook.broker.namespaces.policy_table import AUTO_TOPIC_CREATION
from daybook.broker.namespaces.policy_types import AutoTopicCreation
from daybook.broker.namespaces.records import TenantInfo
from daybook.broker.server import RunningBroker
from daybook.broker.topics.managed_ledger_factory import ManagedLedgerFactory
from daybook.clients.python.errors import BrokerError as ClientError
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import ORDERS, World, send, simulated

TOPIC = TopicName.parse("persistent://t/n/orders")


async def create_namespace(ops: Operations) -> None:
    await ops.tenancy.create_tenant("t", TenantInfo([], [ops.cluster]))
    await ops.tenancy.create_namespace("t/n")


async def is_marked(ops: Operations, namespace: str = "t/n") -> bool:
    return (await ops.policies.namespace(namespace)).deleted


def before_creation(broker: RunningBroker, act: Callable[[], Awaitable[None]]) -> None:
    """Call `act` once, when a topic is about to be created: everything that it needs is known."""
    factory = broker.topics.logs
    assert isinstance(factory, ManagedLedgerFactory)
    ledgers = factory._ledgers  # pyright: ignore[reportPrivateUsage]
    real = ledgers.create
    acted = False

    async def create(*args: object, **named: object) -> bool:
        nonlocal acted
        if not acted:
            acted = True
            await act()
        return await real(*args, **named)  # type: ignore[arg-type]

    ledgers.create = create  # type: ignore[method-assign]


def test_the_default_namespace_is_refused_before_anything_is_deleted() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        ops = broker.operations
        await ops.create_subscription(ORDERS, "s", Start.earliest())
        async with world.client("one") as client:
            await send(client, ORDERS.full, 3)
            with pytest.raises(ConflictError, match="default"):
                await ops.delete_namespace("public/default", force=True)
            assert await ops.topics("public/default") == [ORDERS.full]
            consumer = await client.subscribe(ORDERS.full, "s")
            assert [(await consumer.receive()).data for _ in range(3)] == [b"0", b"1", b"2"]

    simulated(story)


def test_a_deletion_that_is_given_up_leaves_the_namespace_in_use() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await create_namespace(ops)
        async with world.client("one") as client:
            await send(client, TOPIC.full, 1)
        stuck = trio.Event()

        async def delete(topic: TopicName, *, force: bool) -> None:
            stuck.set()
            await trio.sleep_forever()

        real, ops.owned.delete = ops.owned.delete, delete  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: ops.delete_namespace("t/n", force=True))
            await stuck.wait()
            assert await is_marked(ops)
            nursery.cancel_scope.cancel()
        ops.owned.delete = real  # type: ignore[method-assign]
        assert not await is_marked(ops)

    simulated(story)


@pytest.mark.parametrize("by_client", [True, False])
def test_a_topic_is_not_created_in_a_namespace_that_has_gone(by_client: bool) -> None:
    """A broker has looked at the namespace, and creates the topic when it has been deleted."""

    async def story(world: World) -> None:
        one = await world.broker("one")
        ops = one.operations
        await create_namespace(ops)
        before_creation(one, lambda: ops.delete_namespace("t/n", force=False))
        await ops.lookup(TOPIC, authoritative=True)  # The broker owns the bundle from here on.
        with pytest.raises(BrokerError):
            await (one.topics.get(TOPIC, create=True) if by_client else ops.create_topic(TOPIC, {}))
        await trio.sleep(60)
        assert not await ops.owned.stored("t/n")

    simulated(story)


def test_clients_create_no_more_partitions_than_a_topic_may_have() -> None:
    """The policy of a namespace is not checked against the setting of the broker."""

    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await create_namespace(ops)
        wanted = AutoTopicCreation(True, "partitioned", 1025)
        await ops.tenancy.set_policy("t/n", AUTO_TOPIC_CREATION, wanted)
        async with world.client("one") as client:
            with pytest.raises(ClientError, match="partitions_max"):
                await client.create_producer(TOPIC.full)
        assert await ops.partitioned_topics("t/n") == []

    simulated(story)


def test_a_namespace_stays_if_its_mark_is_taken_off_meanwhile() -> None:
    """A deletion that is refused takes the mark off, while another one relies on it."""

    async def story(world: World) -> None:
        one = await world.broker("one")
        ops = one.operations
        await create_namespace(ops)
        real = ops.schemas.registry.delete_namespace

        async def late(namespace: str) -> None:
            await ops.tenancy.mark_deleted("t/n", deleted=False)
            await ops.create_topic(TOPIC, {}, authoritative=True)
            await real(namespace)

        ops.schemas.registry.delete_namespace = late  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="try again"):
            await ops.delete_namespace("t/n", force=True)
        assert not await is_marked(ops)
        assert await ops.topics("t/n") == [TOPIC.full]

    simulated(story)
