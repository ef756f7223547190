"""A task reads sealed ledgers from bookies exactly, and says so if it cannot: it leaves no gap."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from daybook.bookie.errors import ReadUnknownError
from daybook.clients.ledgers import Limits
from daybook.clients.ledgers.blocking import Client as LedgerClient
from daybook.clients.ledgers.blocking import serve
from daybook.clients.ledgers.client import Client as TrioClient
from daybook.clients.ledgers.errors import MetadataDeniedError
from daybook.clients.python.reader import OffsetRange as Held
from daybook.clients.python.reader import SealedLedger, TopicLedgers
from daybook.clients.spark import worker
from daybook.clients.spark.offsets import DataLossError, OffsetRange
from daybook.clients.spark.options import ReadFrom, ReadTask, TaskLedgers
from daybook.clients.spark.read import LedgerUnreadableError, read_task
from daybook.managed_ledger.records import custom_metadata
from tests.clients.ledgers.world import World, open_world
from tests.clients.spark.entries import Stored, batch, numbered, single, stored
from tests.clients.spark.test_read import FakeClient

TOPIC = "persistent://public/default/t-partition-3"
LOG = "public/default/persistent/t-partition-3"
URL = "zk://zookeeper:2181/ledgers"


class Owner(FakeClient):
    """The broker that owns the partition; it counts who asks for what."""

    def __init__(self, entries: list[Stored], held: Held) -> None:
        super().__init__(entries, held)
        self.sealed: list[SealedLedger] = []
        self.asked_for_ledgers = 0

    def ledgers(self, topic: str) -> list[TopicLedgers]:
        assert topic == TOPIC
        self.asked_for_ledgers += 1
        return [TopicLedgers(self.held, URL, tuple(self.sealed))]


@dataclass
class Topic:
    """A partition on simulated bookies, with a broker that has the same entries."""

    bookies: LedgerClient
    run_there: Callable[[Callable[[World], None]], None]  # in the thread of the bookies
    owner: Owner = field(default_factory=lambda: Owner([], Held(0, 0)))

    def seal(self, entries: list[Stored], first: int, following: int, **options: Any) -> int:
        """Store entries as one sealed ledger, and return its id."""
        custom = options.pop("custom", custom_metadata(LOG))
        with self.bookies.create(custom=custom) as writer:
            for entry in entries:
                writer.append_soon(entry.data)
            writer.flush()
        self.note(writer.ledger_id, entries, first, following)
        return writer.ledger_id

    def note(self, ledger_id: int, entries: list[Stored], first: int, following: int) -> None:
        """Let the owner have the ledger."""
        size = sum(len(entry.data) for entry in entries)
        sealed = SealedLedger(ledger_id, first, following, len(entries), size)
        self.owner.sealed.append(sealed)
        known = len(self.owner.entries)
        self.owner.entries = [
            *self.owner.entries,
            *(Stored(ledger_id, known + index, entry.data) for index, entry in enumerate(entries)),
        ]
        self.owner.held = Held(0, following)

    def read(self, start: int, end: int, *, way: ReadFrom = "auto", fail: bool = True) -> list[int]:
        """Return the offsets of the rows of a task, and check their values."""
        ledgers = TaskLedgers(URL, tuple(self.owner.sealed))
        return self.read_planned(ledgers, start, end, way=way, fail=fail)

    def read_planned(
        self,
        ledgers: TaskLedgers,
        start: int,
        end: int,
        *,
        way: ReadFrom,
        fail: bool,
        created: int | None = None,
    ) -> list[int]:
        task = ReadTask(
            "pulsar://x",
            "t",
            OffsetRange(3, start, end),
            fail,
            stored_in=TOPIC,
            read_from=way,
            ledgers=ledgers,
            created=created,
        )
        rows = [row for each in read_task(task) for row in each.to_pylist()]
        assert all(row["value"] == b"%d" % row["offset"] for row in rows)
        return [row["offset"] for row in rows]

    @property
    def brokers_asked(self) -> int:
        return len(self.owner.asked)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    worlds: list[World] = []

    @asynccontextmanager
    async def block() -> AsyncGenerator[TrioClient]:
        async with open_world() as world, world.client() as client:
            worlds.append(world)
            yield client

    with serve(block, Limits()) as client:

        def run_there(act: Callable[[World], None]) -> None:
            async def run() -> None:
                act(worlds[0])
                await trio.lowlevel.checkpoint()

            client._portal.call(run)

        found = Topic(client, run_there)
        monkeypatch.setattr(worker, "_kept", worker._Kept())
        monkeypatch.setattr(worker, "client_of", lambda url, patience_s, tls, who: found.owner)
        monkeypatch.setattr(worker, "ledgers_of", lambda url, zookeeper, bookies: client)
        monkeypatch.setattr(worker, "discard", lambda client: None)
        yield found


def entries_of(first: int, sizes: list[int]) -> list[Stored]:
    found = []
    for size in sizes:
        found.append(numbered(first, size))
        first += size
    return found


@pytest.fixture
def filled(topic: Topic) -> Topic:
    """Offsets 0 to 39 in three sealed ledgers, and 40 to 44 in the open one."""
    topic.seal(entries_of(0, [3, 1, 6]), 0, 10)
    topic.seal(entries_of(10, [5, 5, 5, 5]), 10, 30)
    topic.seal(entries_of(30, [10]), 30, 40)
    topic.owner.entries = [*topic.owner.entries, Stored(99, 0, numbered(40, 5).data)]
    topic.owner.held = Held(0, 45)
    return topic


def test_every_range_is_read_exactly_and_brokers_have_only_the_open_ledger(filled: Topic) -> None:
    for start in range(0, 45, 4):
        for end in range(start + 1, 46, 7):
            before = filled.brokers_asked
            assert filled.read(start, end) == list(range(start, end))
            assert (filled.brokers_asked > before) == (end > 40)
    assert not filled.owner.asked_for_ledgers


def test_entries_that_no_broker_numbered_are_counted(topic: Topic) -> None:
    """The first ledger has no offsets at all; the second one has them from its second entry on."""
    sizes = [3, 1, 4]
    old, first = [], 0
    for size in sizes:
        data: list[tuple[dict[str, Any], bytes]] = [
            ({}, b"%d" % n) for n in range(first, first + size)
        ]
        old.append(stored(batch(data), None))
        first += size
    topic.seal(old, 0, 8)
    topic.seal([stored(single(b"8"), None), numbered(9, 2), numbered(11, 1)], 8, 12)
    for start in range(12):
        for end in (start + 1, 12):
            assert topic.read(start, end, way="bookies") == list(range(start, end))
    assert not topic.brokers_asked


def test_one_bookie_of_three_may_be_away(filled: Topic) -> None:
    filled.run_there(lambda world: world.stop("b1"))
    assert filled.read(0, 40) == list(range(40))
    assert not filled.brokers_asked


def test_a_bookie_that_refuses_a_worker_has_its_options_named(
    filled: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str, zookeeper: object, bookies: object) -> LedgerClient:
        raise ReadUnknownError(7, 0, "bookie b1: UNAUTHORIZED")

    monkeypatch.setattr(worker, "ledgers_of", refused)
    with pytest.raises(
        LedgerUnreadableError, match=r"set the options bookie\.tls, or bookie\.user"
    ):
        filled.read(0, 40, way="bookies")


def test_a_worker_without_rights_in_zookeeper_asks_the_broker(
    filled: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(url: str, zookeeper: object, bookies: object) -> LedgerClient:
        raise MetadataDeniedError("this process has no identity")

    monkeypatch.setattr(worker, "ledgers_of", denied)
    with pytest.raises(LedgerUnreadableError, match="this process has no identity"):
        filled.read(0, 40, way="bookies")
    with caplog.at_level(logging.WARNING, worker.__name__):
        assert filled.read(0, 40) == list(range(40))
    assert "zookeeper.user" in caplog.text


def test_without_bookies_the_broker_is_asked_with_one_warning_or_the_task_fails(
    filled: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(world: World) -> None:
        for name in ("b1", "b2", "b3"):
            world.stop(name)

    filled.run_there(stop)
    with pytest.raises(LedgerUnreadableError, match=r"from offset 2 on are in ledger \d+, which"):
        filled.read(2, 40, way="bookies")
    assert not filled.brokers_asked
    with caplog.at_level(logging.WARNING, worker.__name__):
        assert filled.read(2, 40) == list(range(2, 40))
        assert filled.read(0, 5) == list(range(5))
    assert [r.name for r in caplog.records].count(worker.__name__) == 1


@pytest.mark.parametrize("way", ["auto", "bookies"])
def test_a_ledger_that_was_trimmed_is_data_loss_of_its_offsets(
    filled: Topic, way: ReadFrom
) -> None:
    planned = TaskLedgers(URL, tuple(filled.owner.sealed))
    gone = filled.owner.sealed.pop(0)
    filled.bookies.delete(gone.ledger_id)
    filled.owner.held = Held(10, 45)
    with pytest.raises(DataLossError, match="the offsets 4 to 10 are no longer retained"):
        filled.read_planned(planned, 4, 40, way=way, fail=True)
    found = filled.read_planned(planned, 4, 40, way=way, fail=False)
    assert found == list(range(10, 40))
    # A task that needs none of it notices nothing.
    assert filled.read_planned(planned, 10, 40, way=way, fail=True) == list(range(10, 40))


@pytest.mark.parametrize("way", ["auto", "bookies"])
@pytest.mark.parametrize("fail", [True, False])
def test_a_ledger_that_is_listed_and_not_there_is_an_error_and_never_a_gap(
    filled: Topic, way: ReadFrom, fail: bool
) -> None:
    filled.bookies.delete(filled.owner.sealed[1].ledger_id)
    with pytest.raises(LedgerUnreadableError, match=r"from offset 10 on .* does not exist"):
        filled.read(4, 40, way=way, fail=fail)


def test_a_topic_that_was_made_anew_is_data_loss_if_its_creation_is_known(filled: Topic) -> None:
    planned = TaskLedgers(URL, tuple(filled.owner.sealed))
    filled.bookies.delete(filled.owner.sealed[0].ledger_id)
    filled.owner.sealed.clear()
    with pytest.raises(LedgerUnreadableError, match="may have been created again"):
        filled.read_planned(planned, 4, 40, way="auto", fail=False)
    filled.owner.held = Held(0, 45, created=8)
    with pytest.raises(DataLossError, match="the offsets 4 to 40 are no longer retained"):
        filled.read_planned(planned, 4, 40, way="auto", fail=True, created=7)
    assert filled.read_planned(planned, 4, 40, way="auto", fail=False, created=7) == []


@pytest.mark.parametrize("way", ["auto", "bookies"])
def test_a_ledger_of_another_topic_is_never_read(topic: Topic, way: ReadFrom) -> None:
    custom = custom_metadata("public/default/persistent/other")
    topic.seal(entries_of(0, [10]), 0, 10, custom=custom)
    with pytest.raises(LedgerUnreadableError, match="metadata name public/default/persistent/oth"):
        topic.read(0, 10, way=way)
    assert not topic.brokers_asked


def test_a_ledger_that_is_not_closed_is_left_to_the_broker_and_to_its_writer(
    topic: Topic,
) -> None:
    entries = entries_of(0, [5, 5])
    writer = topic.bookies.create(custom=custom_metadata(LOG))
    for entry in entries:
        writer.append(entry.data)
    topic.note(writer.ledger_id, entries, 0, 10)
    with pytest.raises(LedgerUnreadableError, match="is still OPEN"):
        topic.read(0, 10, way="bookies")
    assert topic.read(0, 10) == list(range(10))
    assert topic.brokers_asked == 1
    assert writer.append(b"more") == 2, "its writer was not fenced"


def test_a_ledger_that_ends_elsewhere_than_its_owner_says_is_an_error(topic: Topic) -> None:
    entries = entries_of(0, [5, 5])
    ledger_id = topic.seal(entries, 0, 10)
    topic.owner.sealed[0] = SealedLedger(ledger_id, 0, 15, 3, 1)
    with pytest.raises(LedgerUnreadableError, match="the ledger ends at entry 1"):
        topic.read(0, 15)
