"""The checker's findings about bookies whose copies each test places."""

from collections.abc import AsyncGenerator, Mapping

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.request_channel import Encode
from daybook.bookie.replication.checker import Checker
from daybook.bookie.replication.protocol.replica_check import BookieStatus, Fill, FragmentReport
from daybook.wire.errors import ConnectionLostError
from daybook.wire.proto import bookkeeper_pb2 as pb
from tests.bookie.replication.cluster import Cluster, Entry, bookie_id, closed_on, open_cluster

B1, B2, B3, B4 = (bookie_id(f"b{n}") for n in range(1, 5))
HERE = dict.fromkeys((B1, B2, B3, B4), BookieStatus.WRITABLE)
WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


async def check(
    cluster: Cluster,
    copies: Mapping[str, Mapping[int, Entry]],
    *,
    statuses: Mapping[BookieId, BookieStatus] = HERE,
    thorough: bool = False,
) -> FragmentReport:
    metadata = closed_on((0, ["b1", "b2", "b3"]))
    ledger_id = await cluster.plant(metadata, copies)
    (report,) = await Checker(cluster.client.context).check(
        ledger_id, metadata, statuses, verify=list(statuses) if thorough else ()
    )
    return report


async def test_whole(cluster: Cluster, autojump_clock: Clock) -> None:
    copies = {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
    assert (await check(cluster, copies)).whole
    assert (await check(cluster, copies, thorough=True)).whole


async def test_a_hole_in_the_middle_is_found(cluster: Cluster, autojump_clock: Clock) -> None:
    """First and last entry exist: samples of these would find nothing."""
    hole: dict[int, Entry] = {0: "good", 3: "good"}
    report = await check(cluster, {"b1": WHOLE, "b2": hole, "b3": WHOLE})
    assert report.fills == (Fill(1, B2, (range(1, 3),)),)
    assert report.copies == 2


async def test_a_bookie_that_never_heard_of_the_ledger_lacks_it_all(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    report = await check(cluster, {"b1": WHOLE, "b2": WHOLE})
    assert report.fills == (Fill(2, B3, (range(4),)),)


async def test_a_digest_that_does_not_match_is_found_by_reading(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    bad: dict[int, Entry] = {**WHOLE, 2: "bad"}
    copies = {"b1": WHOLE, "b2": bad, "b3": WHOLE}
    assert (await check(cluster, copies)).whole
    report = await check(cluster, copies, thorough=True)
    assert [(move.bookie, move.why) for move in report.moves] == [(B2, "it has damaged copies")]
    assert report.copies == 2


async def test_a_bookie_that_does_not_answer_is_unknown(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    cluster.world.network.crash("b3")  # its registration stays
    report = await check(cluster, {"b1": WHOLE, "b2": WHOLE})
    assert not report.fills
    assert not report.moves
    assert report.silent == (B3,)
    assert report.copies == 2


async def test_a_lost_bookie_is_not_asked(cluster: Cluster, autojump_clock: Clock) -> None:
    copies = {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
    report = await check(cluster, copies, statuses={**HERE, B3: BookieStatus.LOST})
    assert [(move.bookie, move.entries) for move in report.moves] == [(B3, (range(4),))]
    assert report.copies == 2


async def test_a_bookie_in_doubt_is_not_taken_at_its_list(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """It may have had entries that its list lacks: it must answer "no" for each entry."""
    metadata = closed_on((0, ["b1", "b2", "b3"]))
    hole: dict[int, Entry] = {0: "good", 3: "good"}
    ledger_id = await cluster.plant(metadata, {"b1": hole, "b2": hole, "b3": hole})
    checker = Checker(cluster.client.context)
    (directory,) = cluster.world.running["b2"].store._directories.ledger_directories
    directory.bookie_in_doubt = True
    (report,) = await checker.check(ledger_id, metadata, HERE)
    assert report.unknown == (range(1, 3),)
    assert not report.no_copy
    directory.bookie_in_doubt = False
    (report,) = await checker.check(ledger_id, metadata, HERE)
    assert report.no_copy == (range(1, 3),)
    assert not report.unknown


async def test_one_that_never_answers_a_question_for_lists_is_asked_for_entries(
    cluster: Cluster, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's bookies with RocksDB do not; the mark stayed forever, as of a silent bookie."""
    asked: list[BookieId] = []
    exchange = cluster.client.context.requests
    ask = exchange.ask

    async def no_lists_of_b3(bookie: BookieId, encode: Encode, timeout_s: float) -> pb.Response:
        asked.append(bookie)
        if bookie != B3:
            return await ask(bookie, encode, timeout_s)
        await trio.sleep(timeout_s)
        raise ConnectionLostError("it did not answer in time")

    metadata = closed_on((0, ["b1", "b2", "b3"]))
    hole: dict[int, Entry] = {0: "good", 3: "good"}
    ledger_id = await cluster.plant(metadata, {"b1": WHOLE, "b2": WHOLE, "b3": hole})
    monkeypatch.setattr(exchange, "ask", no_lists_of_b3)
    checker = Checker(cluster.client.context)
    (report,) = await checker.check(ledger_id, metadata, HERE)
    assert report.fills == (Fill(2, B3, (range(1, 3),)),)
    began = trio.current_time()
    (again,) = await checker.check(ledger_id, metadata, HERE)
    assert again == report
    assert trio.current_time() - began < 1, "nobody waits for its list again"
    assert asked.count(B3) == 1
    cluster.world.network.crash("b3")
    (silent,) = await checker.check(ledger_id, metadata, HERE)
    assert silent.silent == (B3,)


async def test_all_fragments_are_compared(cluster: Cluster, autojump_clock: Clock) -> None:
    metadata = closed_on((0, ["b1", "b2", "b3"]), (2, ["b1", "b2", "b4"]))
    half: dict[int, Entry] = {0: "good"}
    ledger_id = await cluster.plant(
        metadata, {"b1": WHOLE, "b2": WHOLE, "b3": half, "b4": {2: "good", 3: "good"}}
    )
    first, second = await Checker(cluster.client.context).check(ledger_id, metadata, HERE)
    assert first.fills == (Fill(2, B3, (range(1, 2),)),)
    assert second.whole
