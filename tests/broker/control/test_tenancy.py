"""Namespaces, their policies, partitioned topics; several brokers, lost answers, no contact."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.errors import (
    ConflictError,
    InvalidNameError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.namespaces.policy_table import PERSISTENCE, RETENTION
from daybook.broker.namespaces.policy_types import Persistence, Retention
from daybook.broker.namespaces.records import TenantInfo, policies_path
from daybook.broker.protocol.bundles import Bundles
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import open_cluster


async def test_public_default_is_there_from_the_start(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        assert await one.tenancy.clusters() == ["test"]
        assert await one.tenancy.tenants() == ["public"]
        assert await one.tenancy.namespaces("public") == ["public/default"]
        policies = await one.policies.namespace("public/default")
        assert policies.bundles.count == 16
        effective = await one.policies.effective_in("public/default")
        assert effective.retention == Retention(7 * 24 * 60, -1)


async def test_tenants_and_namespaces_come_and_go(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        with pytest.raises(NotFoundError):
            await one.tenancy.create_namespace("t/ns")
        with pytest.raises(PreconditionError):
            await one.tenancy.create_tenant("t", TenantInfo([], ["elsewhere"]))
        for domain in ("persistent", "non-persistent"):
            with pytest.raises(InvalidNameError, match="is a domain of topics"):
                await one.tenancy.create_tenant(domain, TenantInfo([], ["test"]))
        await one.tenancy.create_tenant("t", TenantInfo([], ["test"]))
        with pytest.raises(ConflictError):
            await one.tenancy.create_tenant("t", TenantInfo())
        await one.tenancy.create_namespace("t/ns")
        with pytest.raises(ConflictError, match="exists already"):
            await one.tenancy.create_namespace("t/ns")
        await one.tenancy.mark_deleted("t/ns", deleted=True)
        with pytest.raises(ConflictError, match="is being deleted"):
            await one.tenancy.create_namespace("t/ns")
        assert (await one.policies.bundles("t/ns")) == Bundles.equal(4)
        with pytest.raises(ConflictError):
            await one.tenancy.delete_tenant("t")
        await one.tenancy.delete_namespace_records("t/ns")
        with pytest.raises(NotFoundError):
            await one.policies.namespace("t/ns")
        await one.tenancy.delete_tenant("t")
        with pytest.raises(NotFoundError):
            await one.tenancy.delete_tenant("t")


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "../x"])
async def test_names_that_are_none(name: str, autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        with pytest.raises(InvalidNameError):
            await one.tenancy.create_tenant(name, TenantInfo())
        with pytest.raises(InvalidNameError):
            await one.tenancy.create_namespace(f"public/{name}")


async def test_another_broker_sees_a_change_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await two.policies.namespace("public/default")
        await one.tenancy.set_policy("public/default", RETENTION, Retention(60, 100))
        assert (await two.policies.effective_in("public/default")).retention == Retention(60, 100)
        await one.tenancy.set_policy("public/default", RETENTION, None)
        assert (await two.policies.effective_in("public/default")).retention == Retention(10080, -1)


async def test_policies_of_others_are_kept(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        path = policies_path("public/theirs")
        await one.session.create(path, b'{"deduplicationEnabled":true,"bundles":null}')
        await one.tenancy.set_policy("public/theirs", PERSISTENCE, Persistence(3, 2, 2))
        record = await one.session.get(path)
        assert record is not None
        assert b'"deduplicationEnabled":true' in record.value
        effective = await one.policies.effective_in("public/theirs")
        assert effective.persistence == Persistence(3, 2, 2)
        policies = await one.policies.namespace("public/theirs")
        assert policies.bundles.count == 4


@pytest.mark.parametrize("applied", [True, False])
async def test_a_change_without_an_answer_is_made(applied: bool, autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        one.session.link.lose_next(applied=applied, operation="set")  # type: ignore[attr-defined]
        await one.tenancy.set_policy("public/default", RETENTION, Retention(1, 1))
        assert (await one.policies.effective_in("public/default")).retention == Retention(1, 1)


async def test_changes_made_at_once_do_not_undo_each_other(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.tenancy.set_policy, "public/default", RETENTION, Retention(1, 1))
            nursery.start_soon(
                two.tenancy.set_policy, "public/default", PERSISTENCE, Persistence(1, 1, 1)
            )
        policies = await one.policies.effective_in("public/default")
        assert policies.retention == Retention(1, 1)
        assert policies.persistence == Persistence(1, 1, 1)


@pytest.mark.parametrize(
    "retention", [Retention(0, 5), Retention(5, 0), Retention(-2, -1), Retention(1, -7)]
)
async def test_retention_that_makes_no_sense(
    retention: Retention, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        with pytest.raises(PreconditionError):
            await one.tenancy.set_policy("public/default", RETENTION, retention)


async def test_out_of_contact_the_last_known_policies_count(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.tenancy.create_namespace("public/other")
        known = await one.policies.namespace("public/default")
        cluster.store.suspend()
        assert await one.policies.namespace("public/default") == known
        with pytest.raises(UnavailableError):  # not "not found": the answer is unknown
            await one.policies.namespace("public/other")
        with pytest.raises(UnavailableError):
            await one.policies.partitions(TopicName.parse("orders"))
        cluster.store.resume()
        assert (await one.policies.namespace("public/other")).bundles.count == 4


async def test_partitioned_topics(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        topic = TopicName.parse("a b/c".replace("/", "~"))
        assert await one.policies.partitions(topic) == 0
        assert await one.policies.create_partitioned(topic, 3)
        assert not await one.policies.create_partitioned(topic, 4)
        assert await one.policies.partitions(topic) == 3
        assert await one.policies.list_partitioned("public/default") == [topic]
        await one.policies.delete_partitioned(topic)
        await one.policies.delete_partitioned(topic)
        assert await one.policies.partitions(topic) == 0
