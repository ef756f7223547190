"""Connections to bookies: each request has exactly one outcome, whatever the peer does."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.bookie_client import (
    BookieClient,
    BookieConnection,
    BookieLimits,
    LedgerChannel,
    Purpose,
)
from daybook.bookie.ledger.codecs import AddBatch
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.digest import Digester, master_key
from daybook.wire.entry import encode_header
from daybook.wire.messages.bookie import (
    ADD_ANSWER,
    ADD_HEADER,
    Status,
    encode_add_header,
    encode_adds,
)
from daybook.wire.transport import Buffer
from tests.bookie.ledger.cluster import PORT, Cluster, FakeBookie, open_cluster

B1 = BookieId(f"b1:{PORT}")
KEY = master_key(b"")


@dataclass
class Heard:
    """The results that a listener and an observer were given."""

    lines: list[str] = field(default_factory=list)

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        self.lines.append(f"added {first}+{count}")

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self.lines.append("failed")

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        self.lines.append(f"refused {status.name}")

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        self.lines.append(f"bookie: {reason}")

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        self.lines.append(f"bookie: {status.name}")


@dataclass
class Setup:
    cluster: Cluster
    bookies: BookieClient
    observer: Heard

    @property
    def bookie(self) -> FakeBookie:
        return self.cluster.bookies[0]

    def channel(
        self, ledger_id: int = 5, purpose: Purpose = Purpose.ADD
    ) -> tuple[LedgerChannel, Heard]:
        heard = Heard()
        return self.bookies.open_channel(B1, ledger_id, purpose, heard), heard


@pytest.fixture
async def setup() -> AsyncGenerator[Setup]:
    async with open_cluster(bookies=1) as cluster:

        async def resolve(bookie: BookieId) -> tuple[str, int]:
            await trio.lowlevel.checkpoint()
            return "b1", PORT

        observer = Heard()
        bookies = BookieClient(
            network=cluster.network.of("client"),
            arenas=cluster.arenas,
            flusher=cluster.flusher,
            resolve=resolve,
            takes_blocks=lambda _: False,
            on_failed=observer.bookie_failed,
            on_refused=observer.bookie_refused,
            nursery=cluster.nursery,
            limits=BookieLimits(),
        )
        cluster.nursery.start_soon(bookies.run)
        yield Setup(cluster, bookies, observer)


def frame(entry_id: int, ledger_id: int = 5) -> list[Buffer]:
    header = encode_header(ledger_id, entry_id, -1, 1, Digester(), [b"x"])
    return [encode_add_header(KEY, len(header) + 1) + header, b"x"]


async def test_adds_are_answered_in_runs(setup: Setup, autojump_clock: Clock) -> None:
    channel, heard = setup.channel()
    for entry_id in range(10):
        channel.add(entry_id, frame(entry_id))
    await trio.sleep(1)
    assert heard.lines == ["added 0+10"]
    assert channel.idle
    assert setup.observer.lines == []


async def test_a_connection_that_breaks_fails_what_is_under_way_once(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.bookie.silent = True
    channel.add(0, frame(0))
    channel.add(1, frame(1))
    await trio.sleep(1)
    setup.cluster.network.cut("b1")
    await trio.sleep(1)
    assert heard.lines == ["failed"]
    assert len(setup.observer.lines) == 1
    setup.bookie.silent = False
    channel.add(1, frame(1))
    await trio.sleep(1)
    assert heard.lines == ["failed", "added 1+1"], "the next add connects again"


async def test_a_port_that_refuses_fails_at_once(setup: Setup, autojump_clock: Clock) -> None:
    channel, heard = setup.channel()
    setup.bookie.kill()
    channel.add(0, frame(0))
    await trio.sleep(0.1)
    assert heard.lines == ["failed"]


async def test_a_host_that_swallows_everything_fails_in_time(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.cluster.network.block("client", "b1")
    channel.add(0, frame(0))
    await trio.sleep(3.1)
    assert heard.lines == ["failed"]


async def test_what_is_queued_for_a_connection_that_is_being_made_is_bounded(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.cluster.network.block("client", "b1")
    megabyte = bytes(1 << 20)
    for entry_id in range(70):
        channel.add(entry_id, [megabyte])
    await trio.sleep(0.1)
    assert heard.lines == ["failed"]
    assert setup.observer.lines == ["bookie: it does not keep up"]


async def test_no_answer_fails_after_the_time_out_and_a_late_one_still_counts(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.bookie.delay_s = 8
    channel.add(0, frame(0))
    await trio.sleep(4.9)
    assert heard.lines == []
    await trio.sleep(1)
    assert heard.lines == ["failed"]
    await trio.sleep(3)
    assert heard.lines == ["failed", "added 0+1"]
    assert setup.observer.lines == ["bookie: it did not answer in time"]


async def test_adds_that_leave_together_fail_after_the_time_out(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.bookie.silent = True
    bodies: list[list[Buffer]] = [[b"x"], [b"y"]]
    channel.add_all(AddBatch(0, encode_adds(KEY, 5, 0, -1, [1, 2], Digester(), bodies)))
    await trio.sleep(4.9)
    assert heard.lines == []
    await trio.sleep(1)
    assert heard.lines == ["failed"]


async def test_channels_are_swept_in_the_order_in_which_they_asked(
    setup: Setup, autojump_clock: Clock
) -> None:
    """Seed 42240: a simulated run depended on the addresses of channels."""
    channels = [setup.channel(ledger_id)[0] for ledger_id in range(50)]
    (connection,) = {channel._connection for channel in channels}
    order = [(7 * number) % 50 for number in range(50)]
    for number in order:
        channels[number].add(0, frame(number, 0))
    assert list(connection.asked) == [channels[number] for number in order]
    connection.sweep()
    assert list(connection.asked) == [channels[number] for number in order]


async def test_a_sweep_looks_at_no_channel_that_has_asked_nothing(
    setup: Setup, autojump_clock: Clock
) -> None:
    """A broker may have 100,000 channels, of topics that nobody writes to."""
    channels = [setup.channel(ledger_id)[0] for ledger_id in range(10)]
    (connection,) = {channel._connection for channel in channels}
    channels[3].add(0, frame(0, 3))
    assert list(connection.asked) == [channels[3]]
    await trio.sleep(1)
    assert not connection.asked
    assert len(connection.channels) == 10


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status.FENCED, "refused FENCED"),
        (Status.UNAUTHORIZED, "refused UNAUTHORIZED"),
        (Status.IO_ERROR, "failed"),
        (Status.READ_ONLY, "failed"),
        (Status.NO_LEDGER, "failed"),
    ],
)
async def test_what_an_answer_means(
    setup: Setup, status: Status, told: str, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel()
    setup.bookie.add_status = status
    channel.add(0, frame(0))
    await trio.sleep(1)
    assert heard.lines == [told]


async def test_reads_are_answered_failed_and_timed_out(setup: Setup, autojump_clock: Clock) -> None:
    told: list[Status | None] = []
    channel, _ = setup.channel()
    channel.add(3, frame(3))
    await trio.sleep(0.1)

    def read(entry_id: int) -> None:
        setup.bookies.read(B1, 5, entry_id, lambda status, entry: told.append(status))

    read(3)
    read(-1)
    read(4)
    await trio.sleep(0.1)
    assert told == [Status.OK, Status.OK, Status.NO_ENTRY]
    setup.bookie.silent = True
    told.clear()
    read(3)
    read(3)
    await trio.sleep(4.4)
    assert told == []
    await trio.sleep(1.5)
    assert told == [None, None]
    told.clear()
    read(3)
    setup.cluster.network.cut("b1")
    await trio.sleep(0.1)
    assert told == [None]


async def test_each_user_of_a_ledger_has_a_connection_until_all_its_answers_are_in(
    setup: Setup, autojump_clock: Clock
) -> None:
    setup.bookie.silent = True
    one, heard = setup.channel(purpose=Purpose.RECOVER)
    one.read(0, lambda status, entry: None, fence_key=KEY)
    one.close()
    two, _ = setup.channel(purpose=Purpose.RECOVER)
    assert two._connection is not one._connection
    two.close()
    three, _ = setup.channel(purpose=Purpose.RECOVER)
    assert three._connection is two._connection
    await trio.sleep(6)
    four, _ = setup.channel(purpose=Purpose.RECOVER)
    assert four._connection is one._connection
    assert heard.lines == [], "nobody listens any more"


async def test_a_closed_lane_is_told_nothing(setup: Setup, autojump_clock: Clock) -> None:
    channel, heard = setup.channel()
    channel.add(0, frame(0))
    channel.close()
    await trio.sleep(1)
    assert heard.lines == []
    assert isinstance(channel._connection, BookieConnection)
    assert 5 not in channel._connection.channels


async def test_idle_connections_are_closed(setup: Setup, autojump_clock: Clock) -> None:
    channel, _ = setup.channel()
    channel.add(0, frame(0))
    await trio.sleep(1)
    channel.close()
    assert len(setup.cluster.network._streams) == 2
    await trio.sleep(70)
    assert setup.cluster.network._streams == []
    assert setup.observer.lines == []


async def test_a_probe_says_whether_the_bookie_answers(setup: Setup, autojump_clock: Clock) -> None:
    assert await setup.bookies.probe(B1)
    setup.bookie.silent = True
    assert not await setup.bookies.probe(B1)
    setup.bookie.kill()
    assert not await setup.bookies.probe(B1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02hi",
        ADD_ANSWER.pack(24, ADD_HEADER | 7, 0, 5, 0),
        ADD_ANSWER.pack(24, 0x09090000, 0, 5, 0),
        b"\x00\x00\x00\x18" + bytes(24),
    ],
)
async def test_a_peer_that_is_no_bookie_is_a_failed_one(
    setup: Setup, garbage: bytes, autojump_clock: Clock
) -> None:
    setup.bookie.kill()
    listener = await setup.cluster.network.of("b1").listen("b1", PORT)

    async def serve() -> None:
        stream = await listener.accept()
        stream.try_send([garbage])
        await trio.sleep_forever()

    setup.cluster.nursery.start_soon(serve)
    channel, heard = setup.channel()
    channel.add(0, frame(0))
    await trio.sleep(1)
    assert heard.lines == ["failed"]


async def test_answers_about_strangers_and_strange_codes_do_no_harm(
    setup: Setup, autojump_clock: Clock
) -> None:
    setup.bookie.kill()
    listener = await setup.cluster.network.of("b1").listen("b1", PORT)

    async def serve() -> None:
        stream = await listener.accept()
        answers = [
            ADD_ANSWER.pack(24, ADD_HEADER, 0, 77, 0),
            ADD_ANSWER.pack(24, 0x02020000, 1, 77, 0),
            ADD_ANSWER.pack(24, 0x02020000, 1, 5, 9),
            ADD_ANSWER.pack(24, ADD_HEADER, 0, 5, 0),
            ADD_ANSWER.pack(24, ADD_HEADER, 999, 5, 1),
        ]
        stream.try_send(answers)
        await trio.sleep_forever()

    setup.cluster.nursery.start_soon(serve)
    channel, heard = setup.channel()
    channel.add(0, frame(0))
    channel.add(1, frame(1))
    await trio.sleep(1)
    assert heard.lines == ["added 0+1", "failed"]


# -- adds with deferred sync


async def test_a_deferred_lane_hears_of_a_connection_that_ends_while_nothing_is_under_way(
    setup: Setup, autojump_clock: Clock
) -> None:
    plain, heard = setup.channel()
    deferred, heard_of_deferred = setup.channel(purpose=Purpose.ADD_DEFERRED)
    for channel in (plain, deferred):
        channel.add(0, frame(0))
    await trio.sleep(1)
    setup.cluster.network.cut("b1")
    await trio.sleep(1)
    assert heard.lines == ["added 0+1"]
    assert heard_of_deferred.lines == ["added 0+1", "failed"]


async def test_an_answer_to_a_force_that_was_given_up_answers_no_later_one(
    setup: Setup, autojump_clock: Clock
) -> None:
    channel, heard = setup.channel(purpose=Purpose.ADD_DEFERRED)
    channel.add(0, frame(0))
    await trio.sleep(0.1)
    setup.bookie.delay_s = 8
    forced: list[str] = []
    channel.force(lambda: forced.append("first"))
    await trio.sleep(6)
    assert heard.lines == ["added 0+1", "failed"]
    channel.force(lambda: forced.append("second"))
    await trio.sleep(4)
    assert forced == [], "the answer that came was to the first one"
    await trio.sleep(5)
    assert heard.lines == ["added 0+1", "failed", "failed"], "too late again"
    assert forced == []
    setup.bookie.delay_s = 0
    channel.force(lambda: forced.append("third"))
    await trio.sleep(10)
    assert forced == ["third"]
    assert channel.idle


async def test_a_force_that_is_refused_is_a_failure(setup: Setup, autojump_clock: Clock) -> None:
    channel, heard = setup.channel(purpose=Purpose.ADD_DEFERRED)
    channel.add(0, frame(0))
    setup.bookie.force_status = Status.IO_ERROR
    channel.force(lambda: heard.lines.append("forced"))
    await trio.sleep(1)
    assert heard.lines == ["added 0+1", "failed"]
