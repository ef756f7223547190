"""The number of copies, and the retention."""

import pytest
import trio
from trio.testing import MockClock

from daybook.bookie.ledger.client import Quorums
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.config import BrokerConfig, parse
from daybook.broker.errors import NotFoundError
from daybook.broker.namespaces.policy_table import PERSISTENCE, RETENTION
from daybook.broker.namespaces.policy_types import Persistence, Retention
from daybook.broker.topics.managed_ledger_factory import LogConfigs
from daybook.managed_ledger.protocol import trim
from daybook.wire.logging import silent_log
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import ControlPlane, open_cluster

TOPIC = TopicName.parse("public/default/t")


def configs_of(broker: ControlPlane, config: BrokerConfig) -> LogConfigs:
    return LogConfigs(broker.session, LedgerPaths(), broker.policies, config, silent_log())


async def add_bookies(broker: ControlPlane, count: int) -> None:
    for index in range(count):
        path = f"{LedgerPaths().cookies}/10.0.0.{index}:3181"
        await broker.session.create(path, b"", make_parents=True)


@pytest.mark.parametrize(
    ("bookies", "quorums"),
    [(1, Quorums(1, 1, 1)), (2, Quorums(2, 2, 2)), (3, Quorums(3, 3, 2)), (5, Quorums(3, 3, 2))],
)
async def test_as_many_copies_as_bookies_allow(
    bookies: int, quorums: Quorums, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        configs = configs_of(one, BrokerConfig())
        await add_bookies(one, bookies)
        assert (await configs.for_topic(TOPIC)).quorums == quorums


async def test_settings_and_policies_go_first(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        settings = parse({"quorums": {"ensemble": 2, "write": 2, "ack": 1}})
        configs = configs_of(one, settings)
        assert (await configs.for_topic(TOPIC)).quorums == Quorums(2, 2, 1)
        await one.tenancy.set_policy("public/default", PERSISTENCE, Persistence(5, 3, 2))
        assert (await configs.for_topic(TOPIC)).quorums == Quorums(5, 3, 2)
        with pytest.raises(NotFoundError):
            await configs.for_topic(TopicName.parse("public/none/t"))


async def test_topics_with_the_same_policies_share_a_configuration_until_these_change(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        configs = configs_of(one, BrokerConfig())
        await add_bookies(one, 2)
        first = await configs.for_topic(TOPIC)
        assert await configs.for_topic(TopicName.parse("public/default/other")) is first
        await one.tenancy.set_policy("public/default", RETENTION, Retention(1, 1))
        assert (await configs.for_topic(TOPIC)).retention == trim.Retention(60_000, 1 << 20)
        await one.session.create(f"{LedgerPaths().cookies}/10.0.0.9:3181", b"")
        await trio.sleep(2)  # The number of bookies is not read again for a moment.
        assert (await configs.for_topic(TOPIC)).quorums == Quorums(3, 3, 2)


async def test_when_ledgers_are_full_is_a_setting(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        settings = parse({"roll_entries": 10, "roll_age_s": 20, "cursor_roll_records": 30})
        config = await configs_of(one, settings).for_topic(TOPIC)
        assert (config.roll_entries, config.roll_age_s, config.cursor_roll_records) == (10, 20, 30)


async def test_how_often_cursors_write_snapshots_is_a_setting(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        settings = parse(
            {
                "cursor_snapshot_records": 7,
                "cursor_snapshot_s": 8,
                "max_message_size": 9000,
                "ack_flush_s": 0.2,
            }
        )
        config = await configs_of(one, settings).for_topic(TOPIC)
        assert (config.cursor_snapshot_records, config.cursor_snapshot_s) == (7, 8)
        assert config.flush_s == 0.2
        assert config.cursor_snapshot_bytes_max == 9000  # bounded by the bookies' frame
        config = await configs_of(one, parse({})).for_topic(TOPIC)
        assert (config.cursor_snapshot_records, config.cursor_snapshot_s) == (1_000, 30)
        assert config.cursor_snapshot_bytes_max == 4 << 20


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, trim.Retention(7 * trim.DAY_MS, None)),
        (Retention(-1, -1), trim.Retention(None, None)),
        (Retention(0, 0), trim.Retention(0, 0)),
        (Retention(2, 3), trim.Retention(120_000, 3 << 20)),
        (Retention(-1, 3), trim.Retention(None, 3 << 20)),
    ],
)
async def test_retention(
    policy: Retention | None, expected: trim.Retention, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        configs = configs_of(one, BrokerConfig())
        await one.tenancy.set_policy("public/default", RETENTION, policy)
        assert (await configs.for_topic(TOPIC)).retention == expected
