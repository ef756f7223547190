"""The largest entry follows what the bookies announce: Apache's announce nothing."""

from collections.abc import AsyncGenerator

import pytest
from trio.testing import MockClock

from daybook.bookie.errors import EntryTooLargeError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.wire.messages.bookie import APACHE_FRAME_BYTES_MAX, FRAME_BYTES_MAX
from tests.bookie.ledger.cluster import Cluster, FakeBookie, open_cluster
from tests.bookie.server.test_hostile import wait_until

_OVERHEAD = 500 + 32 + 4  # headers of the bookie; header and digest of an entry


@pytest.fixture
async def three(autojump_clock: MockClock) -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


async def settled(client: LedgerClient, frame_bytes: int) -> None:
    """Wait until the client knows what the bookies announce."""
    directory = client.directory
    await wait_until(
        lambda: directory.frame_bytes_max == frame_bytes and len(directory.writable) == 3
    )


async def announce(bookie: FakeBookie, frame_bytes: str) -> None:
    bookie.kill()
    bookie.frame_bytes = frame_bytes
    await bookie.start()


async def test_the_smallest_limit_of_all_bookies_counts(three: Cluster) -> None:
    client = await three.client()
    writer = await client.create(Quorums(3, 3, 2))
    assert writer.payload_bytes_max == APACHE_FRAME_BYTES_MAX - _OVERHEAD
    for bookie in three.bookies:
        await announce(bookie, str(FRAME_BYTES_MAX))
    await settled(client, FRAME_BYTES_MAX)
    assert writer.payload_bytes_max == FRAME_BYTES_MAX - _OVERHEAD
    entry_id = writer.append([bytes(APACHE_FRAME_BYTES_MAX)])
    await writer.wait_confirmed(entry_id)
    assert client.entry_bytes_max() == FRAME_BYTES_MAX - 500

    # A bookie without an announcement joins: from now on it may become a member at any time.
    await announce(three.bookies[0], "")
    await settled(client, APACHE_FRAME_BYTES_MAX)
    with pytest.raises(EntryTooLargeError, match="bookies take at most"):
        writer.append([bytes(APACHE_FRAME_BYTES_MAX)])


@pytest.mark.parametrize("text", ["-1", "0", "1000", "much", "9" * 30, "٣٠٠٠٠٠٠"])
async def test_nonsense_is_taken_for_nothing(three: Cluster, text: str) -> None:
    client = await three.client()
    for bookie in three.bookies:
        await announce(bookie, str(FRAME_BYTES_MAX))
    await settled(client, FRAME_BYTES_MAX)
    await announce(three.bookies[1], text)
    await settled(client, APACHE_FRAME_BYTES_MAX)


def test_a_client_has_a_limit_of_its_own() -> None:
    assert BookieLimits(frame_bytes_max=2 << 20).entry_bytes_max(1 << 30) == (2 << 20) - 500
