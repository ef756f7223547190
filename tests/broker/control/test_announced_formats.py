"""A new format is allowed while every broker of the cluster announces that it can read it."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.formats import READABLE, Formats
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import BrokerRecord, GuardRecord
from daybook.broker.ownership.membership import ensure, members
from daybook.wire.metadata.store import ANY, SessionState
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster

FORMAT = READABLE[0]


async def becomes(broker: ControlPlane, allowed: bool) -> None:
    with trio.fail_after(60):
        while broker.formats.allows(FORMAT) is not allowed:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_format_is_allowed_when_all_announce_it(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        assert one.formats.allows(FORMAT)
        assert two.formats.allows(FORMAT)
        assert not one.formats.allows("a format of the future")


async def test_an_older_broker_forbids_it_until_it_has_gone(autojump_clock: MockClock) -> None:
    """A rolling upgrade, in which the last old broker decides; then a rollback."""
    async with open_cluster() as cluster:
        old = await cluster.start("old", readable=())
        new = await cluster.start("new")
        assert not new.formats.allows(FORMAT)
        assert not old.formats.allows(FORMAT)
        await old.ownership.withdraw()  # The broker serves until it has handed over its bundles.
        await trio.sleep(1)
        assert not new.formats.allows(FORMAT)
        old.kill()
        cluster.store.expire(old.session_id)
        await becomes(new, True)
        await cluster.start("rolled-back", readable=())
        await becomes(new, False)


async def test_a_killed_older_broker_counts_until_its_records_are_removed(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        new, old = await cluster.start("new"), await cluster.start("old", readable=())
        await becomes(new, False)
        old.kill()
        await becomes(new, True)
        assert [m.broker_id for m in await members(new.session)] == [new.identity.broker_id]


@pytest.mark.parametrize("value", [b"no JSON", b'{"brokerId":"x:1","incarnation":"y"}', b""])
async def test_a_guard_that_announces_nothing_forbids_everything(
    autojump_clock: MockClock, value: bytes
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.session.create(f"{records.GUARDS}/x", value, ephemeral=True)
        await becomes(one, False)
        await one.session.delete(f"{records.GUARDS}/x", ANY)
        await becomes(one, True)


async def register(cluster: Cluster, record: BrokerRecord) -> None:
    session = cluster.store.session("elsewhere")
    path = f"{records.BROKERS}/elsewhere:8080"
    await session.create(path, records.encode(record), ephemeral=True)


async def test_a_broker_of_pulsar_is_not_judged(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await register(cluster, BrokerRecord("pulsar://elsewhere:6650"))
        await trio.sleep(5)
        assert one.formats.allows(FORMAT)


async def test_a_registration_of_ours_without_a_guard_is_unknown(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        record = BrokerRecord("pulsar://elsewhere:6650", protocols={records.INCARNATION: "life"})
        await register(cluster, record)
        await becomes(one, False)


async def test_nothing_is_allowed_before_the_guards_are_read_and_after_the_session_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        fresh = Formats(cluster.store.session("fresh"))
        assert not fresh.allows(FORMAT)
        states: list[tuple[SessionState, bool]] = []
        one.session.add_session_listener(
            lambda state: states.append((state, one.formats.allows(FORMAT)))
        )
        cluster.store.expire(one.session_id)
        await trio.sleep(5)
        assert (SessionState.LOST, False) in states
        await becomes(one, True)


@pytest.mark.parametrize("formats", [(), READABLE])
async def test_a_broker_announces_what_it_can_read(
    autojump_clock: MockClock, formats: Sequence[str]
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one", readable=formats)
        await ensure(one.session, records.GUARDS)
        (name,) = await one.session.get_children(records.GUARDS) or []
        record = await one.session.get(f"{records.GUARDS}/{name}")
        assert record is not None
        identity = one.identity
        expected = GuardRecord(identity.broker_id, identity.incarnation)
        if formats:
            expected.formats = list(formats)
        assert records.decode(GuardRecord, record.value) == expected
