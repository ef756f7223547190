"""A request without an answer is carried out late: a broker owns a bundle, and finds that out."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.protocol.bundles import middle
from daybook.broker.protocol.ownership import Answer
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import ControlPlane, open_cluster
from tests.harness.broker import open_broker

TOPIC = TopicName.parse("orders")


async def client_finds(broker: ControlPlane, asked: ControlPlane) -> bool:
    """Return True if a client that asks another broker is led here, and served."""
    found = await asked.lookups.lookup(TOPIC)
    assert found.service_url == broker.identity.service_url
    if not broker.ownership.may_load(TOPIC):
        await broker.ownership.wait_handed_over(TOPIC)
    return broker.ownership.may_load(TOPIC)


async def test_the_owner_of_a_split_without_an_answer_serves_clients_that_others_send(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        bundle = await one.policies.bundle_of(TOPIC)
        assert await one.ownership.acquire(bundle) is Answer.OURS
        one.session.link.lose_next(applied=True, operation="multi")  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError, match="may not have been split"):
            await one.ownership.split(bundle, middle(bundle.rpartition("/")[2]))
        await trio.sleep(1)
        assert one.topics.dropped == [bundle]
        assert await client_finds(one, two)


async def test_a_record_that_is_created_late_is_noticed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        bundle = await one.policies.bundle_of(TOPIC)
        value = records.encode(one.identity.owner_record)
        path = records.owner_path(bundle)
        await one.session.create(path, value, ephemeral=True, make_parents=True)
        assert await client_finds(one, two)


async def test_the_bundle_of_another_broker_stays_there(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        bundle = await one.policies.bundle_of(TOPIC)
        await two.ownership.wait_handed_over(TOPIC)  # Nobody owns it, and a client asks anyhow.
        assert two.ownership.owned == []
        assert await one.ownership.acquire(bundle) is Answer.OURS
        await two.ownership.wait_handed_over(TOPIC)
        assert (one.ownership.owned, two.ownership.owned) == ([bundle], [])


async def test_one_read_is_for_all_clients_that_ask_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        bundle = await one.policies.bundle_of(TOPIC)
        assert await one.ownership.acquire(bundle) is Answer.OURS
        reads: list[str] = []
        real = two.session.get

        async def get(path: str, watch: object = None) -> object:
            reads.append(path)
            await trio.sleep(1)
            return await real(path, watch)  # type: ignore[arg-type]

        await two.policies.bundle_of(TOPIC)
        two.session.get = get  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(two.ownership.wait_handed_over, TOPIC)
        assert reads == [records.owner_path(bundle)]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_clients_of_both_kinds_of_topics_give_the_broker_time(
    domain: str, autojump_clock: MockClock
) -> None:
    async with open_broker() as cluster:
        topics, owned = cluster.broker.topics, False

        async def become_owner(_: TopicName) -> None:
            nonlocal owned
            await trio.sleep(1)
            owned = True

        topics.attach(owns=lambda _: owned, may_load=lambda _: owned, wait_handed_over=become_owner)
        topic = TopicName.parse(f"{domain}://public/default/orders")
        assert (await topics.open(topic, create=True)).name == topic
