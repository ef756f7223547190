"""Our cursors, opened by Apache Pulsar's own managed ledgers after a crash of our broker.

Pulsar may deliver acknowledged messages again.  It must never skip one that was not.
"""

import random
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from daybook.bookie.ledger.client import Quorums, open_ledger_client
from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.cursor_ledger import (
    CHANGE_2,
    encode_change,
    encode_change_1,
    encode_holes,
    encode_properties,
    encode_snapshot,
)
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import ManagedLedgers, open_managed_ledgers
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.cursor import Change
from daybook.managed_ledger.protocol.holes import HoleCount
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork
from tests.interop.cluster import SESSION_S, Cluster
from tests.interop.peer import PulsarPeer
from tests.managed_ledger.world import message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.interop

RECORDS = 1_000_000
CRASHES = 12
LEDGERS = (1, 100, 1 << 20, 1 << 40)


def below(rng: random.Random, limit: int) -> int:
    return int(rng.random() * limit)  # `randrange` takes three times as long


def random_position(rng: random.Random) -> Position:
    entry_id = (-1, below(rng, 100), below(rng, 1 << 26))[below(rng, 3)]
    return Position(LEDGERS[below(rng, len(LEDGERS))] + below(rng, 1000), entry_id)


def random_change(rng: random.Random) -> Change:
    runs: list[tuple[int, int, int]] = []
    for _ in range((0, 1, 1, 1, 2, 5)[below(rng, 6)]):
        at = random_position(rng)
        first = max(at.entry_id, 0)
        runs.append((at.ledger_id, first, first + (0, 0, 1, 500)[below(rng, 4)]))
    return Change(random_position(rng), tuple(runs), reset=rng.random() < 0.1)


def random_holes(rng: random.Random, mark_delete: Position) -> bytes:
    """Return the field with the size of the holes, which half of the records have."""
    if rng.random() < 0.5:
        return b""
    top = Position(mark_delete.ledger_id + below(rng, 2), below(rng, 1 << 40))
    sizes = (rng.getrandbits(20), rng.getrandbits(40), rng.getrandbits(60))
    return encode_holes(HoleCount(mark_delete, top, *sizes))


def records_of_version_2(seed: int, count: int) -> Iterator[tuple[Position, bytes]]:
    """Yield changes, seeks, and some snapshots and their parts, with the mark-delete position."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        change = random_change(rng)
        properties = {f"p{n}": rng.getrandbits(63) for n in range((0, 0, 0, 2)[below(rng, 4)])}
        holes = random_holes(rng, change.mark_delete)
        records = [encode_change(change, encode_properties(properties), holes)]
        if rng.random() < 0.001:
            acked = AckSet()
            for _ in range(rng.choice([3, 300])):
                first = rng.randrange(20_000)
                acked.add_range(change.mark_delete.ledger_id, first, first + rng.randrange(9))
            whole_bytes_max = rng.choice([50, 1 << 20])
            records += encode_snapshot(
                change.mark_delete,
                acked,
                properties,
                whole_bytes_max=whole_bytes_max,
                holes=holes,
            )
        for record in records[: count - made]:
            yield change.mark_delete, record
            made += 1


def test_a_million_records_give_pulsar_exactly_the_mark_delete_position(
    pulsar: PulsarPeer, tmp_path: Path
) -> None:
    expected: list[str] = []

    def records() -> Iterator[bytes]:
        for mark_delete, record in records_of_version_2(17, RECORDS):
            expected.append(f"{mark_delete.ledger_id} {mark_delete.entry_id}")
            yield record

    read = [line.rsplit(" ", 2)[0] for line in pulsar.positions(records(), tmp_path)]
    assert len(read) == RECORDS
    assert read == expected


def test_pulsar_misreads_some_records_of_version_1(pulsar: PulsarPeer, tmp_path: Path) -> None:
    """The counter-example: it does not reject each record, and reads wrong positions from some.

    If this fails, version 1 has become harmless in that release of Pulsar.
    """
    rng, changes = random.Random(18), list[Change]()
    for _ in range(100_000):
        # A short log in ledger 16: its id, and small numbers, are tags of PositionInfo's fields.
        entries = sorted(rng.sample(range(1, 80), 2 * rng.randrange(3, 7)))
        runs = tuple((16, a, b) for a, b in zip(entries[::2], entries[1::2], strict=True))
        changes.append(Change(Position(16, entries[0] - 1), runs))
    read = pulsar.positions(map(encode_change_1, changes), tmp_path)
    accepted = [
        (change, line) for change, line in zip(changes, read, strict=True) if line != "refused"
    ]
    wrong = [
        line
        for change, line in accepted
        if Position(*map(int, line.split()[:2])) != change.mark_delete
    ]
    print(f"of {len(changes)} of version 1 accepted: {len(accepted)}, wrong: {len(wrong)}")
    assert wrong


# -- topics that are opened after a crash


@asynccontextmanager
async def our_logs(cluster: Cluster) -> "AsyncGenerator[ManagedLedgers]":
    rng = random.Random(1)
    async with (
        open_zookeeper(cluster.zookeeper.address, session_timeout_s=SESSION_S) as store,
        trio.open_nursery() as nursery,
    ):
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        async with (
            open_ledger_client(
                store=store,
                network=TcpNetwork(),
                rng=rng,
                clock=SystemClock(),
                arenas=ArenaPool(),
                flusher=flusher,
                root=cluster.root,
            ) as client,
            open_managed_ledgers(
                client=client,
                store=store,
                clock=SystemClock(),
                rng=rng,
                allows={CHANGE_2}.__contains__,
            ) as logs,
        ):
            yield logs
        nursery.cancel_scope.cancel()


async def fill(log: ManagedLedger, numbers: range) -> list[Position]:
    positions: list[Position] = []
    done = trio.Event()

    def appended(position: Position | None, error: Exception | None) -> None:
        assert position is not None, error
        positions.append(position)
        if len(positions) == len(numbers):
            done.set()

    for number in numbers:
        log.append(message(number), 1, appended)
    await done.wait()
    return positions


@pytest.mark.parametrize("bookies", ["own", "apache"])
async def test_after_a_crash_of_ours_pulsar_skips_nothing(
    bookies: str, pulsar: PulsarPeer, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(bookies)
    rng, name = random.Random(bookies), f"public/default/persistent/crashes-{bookies}"
    config = LogConfig(quorums=Quorums(3, 3, 2), roll_entries=40, flush_s=0.02)
    async with our_logs(cluster) as logs:
        acked: set[Position] = set()
        positions: list[Position] = []
        for crash in range(CRASHES):
            config = replace(
                config,
                cursor_snapshot_records=rng.choice([3, 10, 1000]),
                cursor_snapshot_s=rng.choice([0.05, 30.0]),
                cursor_roll_records=rng.choice([5, 5000]),
                cursor_snapshot_bytes_max=rng.choice([40, 1 << 20]),
            )
            log = await logs.open(name, config)
            positions += await fill(log, range(30 * crash, 30 * crash + 30))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            # Acknowledgements without a receipt may have been lost in the last crash.
            acked = {p for p in positions if cursor.is_acked(p)}
            unacked = [p for p in positions if p not in acked]
            for _ in range(rng.randrange(1, 25)):
                near = unacked[: rng.choice([5, 40])]
                taken = rng.sample(near, rng.randrange(1, 4))
                acked.update(taken)
                cursor.ack(taken)
                if rng.random() < 0.7:
                    await cursor.flush()
                else:
                    await trio.sleep(rng.uniform(0, 0.03))
            log.abandon()
            told = await trio.to_thread.run_sync(pulsar.open, cluster, name, "s")
            ahead = [p for p in positions if p <= told.mark_delete and p not in acked]
            assert not ahead, (crash, told.mark_delete)
            missing = [p for p in positions if p not in acked and p not in told.positions]
            assert not missing, (crash, told.mark_delete)
        log = await logs.open(name, config)
        cursor = log.cursors["s"]
        cursor.ack(positions[-10:-1:2])
        await log.close()
        acked = {p for p in positions if cursor.is_acked(p)}
        told = await trio.to_thread.run_sync(pulsar.open, cluster, name, "s")
        assert told.mark_delete == cursor.mark_delete
        assert [p for p in positions if p not in acked] == told.positions
        # The logs of all ledger roots lie beside each other in this one ZooKeeper, and a broker
        # that finds a log of another root refuses to join.
        await logs.delete(await logs.open(name, config))


def test_pulsar_and_our_brokers_go_on_from_each_others_deduplication_state(
    pulsar: PulsarPeer,
) -> None:
    """Pulsar's managed ledgers read our cursor `pulsar.dedup`, and our broker reads theirs."""
    log = "public/default/persistent/once"
    with StandaloneProcess(brokers=1) as own:
        uri = f"zk+null://{own.zookeeper}/ledgers"
        with blocking.connect_admin(own.admin_url) as admin:
            admin.create_topic("once")
            admin.set_topic_deduplication("once", True)
            with blocking.connect(own.service_url) as client:
                for name in ("app", "other"):
                    with client.create_producer("once", name=name) as producer:
                        for _ in range(5):
                            last = producer.send(b"x", sequence_id=producer.last_sequence_id + 7)
                own.local("kill", "broker-1")  # The state is in the cursor's ledger, or replayed.
                own.local("start", "broker-1")
                with client.create_producer("once", name="app", initial_sequence_id=0) as producer:
                    assert producer.send(b"x", sequence_id=30).stored_before
                    assert not producer.send(b"y", sequence_id=100).stored_before
            admin.unload_topic("once")
            position, properties = pulsar.properties(own.zookeeper, uri, log, "pulsar.dedup")
            assert properties == {"app": 100, "other": 34}
            assert position > Position(last.ledger_id, last.entry_id)
            pulsar.mark(own.zookeeper, uri, log, "pulsar.dedup", {"app": 500, "theirs": 7})
            with blocking.connect(own.service_url) as client:
                with client.create_producer("once", name="app") as producer:
                    assert producer.last_sequence_id == 500
                with client.create_producer("once", name="theirs") as producer:
                    assert producer.last_sequence_id == 7
