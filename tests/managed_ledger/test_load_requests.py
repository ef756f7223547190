"""How many requests the takeover of a log costs, alone and together with others."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from daybook.bookie.ledger.bookie_client import BookieConnection
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from daybook.wire.messages.bookie import LAST_ENTRY
from daybook.wire.metadata.memory import Request
from daybook.wire.transport import Buffer
from tests.managed_ledger.world import Host, HostLink, World, append, play, read_all

MANY = 100


def count_requests(monkeypatch: pytest.MonkeyPatch, host: Host) -> Counter[str]:
    """Count the host's requests to the metadata store from now on, by operation."""
    counted = Counter[str]()
    request = HostLink.request

    async def counting(self: HostLink, asked: Request, execute: Callable[[], None]) -> None:
        if self is host.link:
            counted[asked.operation] += 1
        await request(self, asked, execute)

    monkeypatch.setattr(HostLink, "request", counting)
    return counted


def count_of_bookies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of all hosts to bookies from now on."""
    counted = Counter[str]()
    read, add = BookieConnection.send_read, BookieConnection.send_add

    def counting_read(
        self: BookieConnection, ledger_id: int, entry_id: int, fence_key: bytes | None
    ) -> None:
        counted["last entry" if entry_id == LAST_ENTRY else "entry"] += 1
        read(self, ledger_id, entry_id, fence_key)

    def counting_add(
        self: BookieConnection, ledger_id: int, entry_id: int, frame: Sequence[Buffer]
    ) -> None:
        counted["add"] += 1
        add(self, ledger_id, entry_id, frame)

    monkeypatch.setattr(BookieConnection, "send_read", counting_read)
    monkeypatch.setattr(BookieConnection, "send_add", counting_add)
    return counted


def names(count: int) -> list[str]:
    return [f"t/n/persistent/{number}" for number in range(count)]


async def at_once(calls: list[Callable[[], Awaitable[object]]]) -> None:
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)


async def fill(host: Host, log_names: list[str]) -> None:
    """Append three entries to each log, and give it a cursor that stands in its record."""
    for name in log_names:
        log = await host.open(name=name)
        await log.open_cursor("s", initial=EARLIEST)
        await append(log, range(3))


def test_what_the_takeover_of_one_log_asks_the_metadata_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await fill(one, names(2))
            await two.open(name=names(2)[0])  # connects to the bookies
            counted = count_requests(monkeypatch, two)
            log = await two.open(name=names(2)[1])
            asked = Counter(counted)
            assert await read_all(log) == [0, 1, 2]
            # The list; the old ledger, marked and closed; the new ledger and its number; the list;
            # the cursor.
            assert asked == {
                "sync": 1,
                "get": 3,  # list, old ledger, cursor
                "set": 3,  # old ledger twice, list
                "create": 2,  # number and ledger
                "delete": 1,  # number
                "get_children": 1,
            }

    play(scenario)


def test_a_log_without_cursors_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await append(await one.open(), range(3))
            counted = count_requests(monkeypatch, two)
            log = await two.open()
            assert counted["get_children"] == 0
            assert not log.cursors
            await log.open_cursor("s", initial=EARLIEST)
            assert await log.ledgers.read_children() == ["s"]

    play(scenario)


def test_a_cursor_that_comes_while_the_log_is_taken_over_is_found() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            owned = await one.open()
            held = two.link.hold_next("set", "/managed-ledgers")
            opened: list[ManagedLedger] = []

            async def take_over() -> None:
                opened.append(await two.open())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await held.caught.wait()  # It has read the list, and has not written it.
                await owned.open_cursor("s", initial=EARLIEST)
                held.let_go()
            assert list(opened[0].cursors) == ["s"]

    play(scenario)


@pytest.mark.parametrize("count", [1, MANY])
def test_what_takeovers_ask_the_bookies(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await fill(one, names(count))
            asked = count_of_bookies(monkeypatch)
            await at_once([lambda name=name: two.open(name=name) for name in names(count)])  # type: ignore[misc]
            # Each bookie is fenced, and says its last entry.  The last entry lies above the LAC: it
            # is not read again, and written to all.  Nobody has the entry behind it.
            assert asked["last entry"] == 3 * count
            assert asked["entry"] <= 3 * count
            assert asked["add"] == 3 * count

    play(scenario)


def test_logs_that_are_taken_over_together_share_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await fill(one, names(MANY))
            counted = count_requests(monkeypatch, two)
            two.link.delay_s = 0.002
            await at_once([lambda name=name: two.open(name=name) for name in names(MANY)])  # type: ignore[misc]
            assert counted["sync"] <= 3
            assert counted["set"] == 3 * MANY

    play(scenario)
