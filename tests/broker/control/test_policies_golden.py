"""The policies of a namespace, byte by byte: ours, and those that a Pulsar broker may have left."""

import trio
from trio.testing import MockClock

from daybook.broker.namespaces.policies import Persistence, Retention
from daybook.broker.namespaces.records import policies_path
from daybook.broker.protocol.bundles import Bundles
from tests.broker.control.brokers import ControlPlane, open_cluster
from tests.broker.control.test_records import GOLDEN

RETENTION, PERSISTENCE = Retention(60, 100), Persistence(3, 3, 2)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")


async def stored(broker: ControlPlane, namespace: str) -> bytes:
    record = await broker.session.get(policies_path(namespace))
    assert record is not None
    return record.value


async def test_policies_are_written_and_read_as_they_were_released(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.tenancy.create_namespace(
            "public/golden",
            bundles=Bundles.equal(2),
            retention=RETENTION,
            persistence=PERSISTENCE,
        )
        assert await stored(one, "public/golden") == golden("policies")
        found = await one.policies.namespace("public/golden")
        assert (found.retention, found.persistence) == (RETENTION, PERSISTENCE)
        assert found.bundles == Bundles.equal(2)
        await one.tenancy.mark_deleted("public/golden", deleted=True)
        assert await stored(one, "public/golden") == golden("policies_deleted")


async def test_what_is_not_ours_stays_when_policies_are_changed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        path = policies_path("public/theirs")
        await one.session.create(path, golden("policies_of_others"), make_parents=True)
        with trio.fail_after(5):
            assert (await one.policies.namespace("public/theirs")).retention == Retention(5, 6)
            await one.tenancy.set_retention("public/theirs", RETENTION)
        assert await stored(one, "public/theirs") == golden("policies_of_others_changed")
