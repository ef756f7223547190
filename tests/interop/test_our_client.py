"""Our ledger client on Apache's bookies, and on bookies of both kinds."""

import threading
from collections.abc import Iterator

import pytest

from daybook.clients import ledgers
from daybook.clients.ledgers import Digest
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import decode_entry
from daybook.wire.messages.bookie import BatchReadAnswer, Status, encode_batch_read
from tests.harness.processes import PATIENCE_S
from tests.interop.cluster import Cluster, ask
from tests.interop.peer import check, payload

pytestmark = pytest.mark.interop

PASSWORD = b"pw"


@pytest.fixture(params=["apache", "mixed"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ledgers.blocking.Client]:
    with ledgers.blocking.connect(cluster.address) as connected:
        yield connected


def append(writer: ledgers.blocking.Writer, number: int, size: int) -> int:
    """Append entries; return the last id when all are confirmed."""
    first = writer.last_add_confirmed + 1
    appended = [writer.append_soon(payload(first + n, size)) for n in range(number)]
    for n, future in enumerate(appended):
        assert future.result(PATIENCE_S) == first + n
    return first + number - 1


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "none"])
def test_what_is_written_is_read(client: ledgers.blocking.Client, digest: Digest) -> None:
    with client.create(digest=digest, password=PASSWORD, custom={"key": b"\0value"}) as writer:
        assert append(writer, 500, 1000) == 499
    reader = client.open(writer.ledger_id, recover=False, password=PASSWORD)
    assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, 499, 500_000)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 1000) == 500
    assert client.metadata(writer.ledger_id).custom == {"key": b"\0value"}
    with pytest.raises(ledgers.UnauthorizedError):
        client.open(writer.ledger_id, recover=True, password=b"another")


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
def test_entries_of_any_size(client: ledgers.blocking.Client, size: int) -> None:
    with client.create() as writer:
        append(writer, 4, size)
    reader = client.open(writer.ledger_id, recover=False)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, size) == 4


def test_the_largest_entry_that_fits_is_stored(client: ledgers.blocking.Client) -> None:
    size = 5 * 1024 * 1024 - 500 - 32 - 4
    with client.create() as writer:
        append(writer, 1, size)
    larger = client.create()
    with pytest.raises(ledgers.EntryTooLargeError):
        larger.append(payload(0, size + 1))
    reader = client.open(writer.ledger_id, recover=False)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, size) == 1


def test_entries_may_be_striped(client: ledgers.blocking.Client) -> None:
    with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
        append(writer, 300, 100)
    reader = client.open(writer.ledger_id, recover=False)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == 300


@pytest.mark.parametrize("digest", ["crc32c", "hmac", "none"])
def test_a_ledger_that_was_left_open_is_recovered_and_its_writer_fenced(
    client: ledgers.blocking.Client, cluster: Cluster, digest: Digest
) -> None:
    writer = client.create(digest=digest, password=PASSWORD)
    last = append(writer, 1000, 100)
    with ledgers.blocking.connect(cluster.address) as other:
        reader = other.open(writer.ledger_id, recover=True, password=PASSWORD)
        assert (reader.closed, reader.last_add_confirmed) == (True, last)
        assert reader.length == 1000 * 100
        assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == 1000
    with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
        writer.append(b"too late", timeout_s=PATIENCE_S)
    assert client.open(writer.ledger_id, recover=False, password=PASSWORD).closed


@pytest.mark.parametrize("digest", ["crc32c", "hmac"])
def test_the_same_in_v3(cluster: Cluster, digest: Digest) -> None:
    """A ledger is written, left open, recovered and read, without a frame of v2."""
    limits = ledgers.Limits(
        ledger=ledgers.LedgerLimits(bookies=ledgers.BookieLimits(protocol="v3"))
    )
    with (
        ledgers.blocking.connect(cluster.address, limits=limits) as one,
        ledgers.blocking.connect(cluster.address, limits=limits) as other,
    ):
        writer = one.create(digest=digest, password=PASSWORD)
        last = append(writer, 500, 1000)
        reader = other.open(writer.ledger_id, recover=True, password=PASSWORD)
        assert (reader.last_add_confirmed, reader.length) == (last, 500_000)
        assert check(reader.read(timeout_s=PATIENCE_S), 0, 1000) == 500
        with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
            writer.append(b"too late", timeout_s=PATIENCE_S)


def test_entries_that_are_synced_later_are_confirmed_by_a_force(
    client: ledgers.blocking.Client, cluster: Cluster
) -> None:
    with (
        client.create_deferred(password=PASSWORD) as writer,
        ledgers.blocking.connect(cluster.address) as other,
    ):
        futures = [writer.append_soon(payload(n, 100)) for n in range(300)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(300))
        assert writer.last_add_confirmed == -1
        assert writer.force(timeout_s=PATIENCE_S) == 299
        reader = other.open(writer.ledger_id, recover=False, password=PASSWORD)
        tail = reader.tail(timeout_s=PATIENCE_S)
        assert [next(tail).entry_id for _ in range(300)] == list(range(300))
        assert writer.append(payload(300, 100)) == 300
        assert reader.read_last_add_confirmed() == 299
    reader = client.open(writer.ledger_id, recover=False, password=PASSWORD)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == 301


def test_a_ledger_in_which_nothing_was_written_is_recovered(
    client: ledgers.blocking.Client, cluster: Cluster
) -> None:
    writer = client.create()
    with ledgers.blocking.connect(cluster.address) as other:
        reader = other.open(writer.ledger_id, recover=True)
        assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, -1, 0)
    with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
        writer.append(b"too late", timeout_s=PATIENCE_S)


def test_a_follower_sees_each_entry_and_the_end(
    client: ledgers.blocking.Client, cluster: Cluster
) -> None:
    """This includes the last entry before a pause: the idle writer announces its LAC."""
    writer = client.create()
    append(writer, 1, 100)
    with ledgers.blocking.connect(cluster.address) as other:
        seen: list[int] = []
        arrived = threading.Semaphore(0)

        def follow() -> None:
            reader = other.open(writer.ledger_id, recover=False)
            for entry in reader.tail(timeout_s=PATIENCE_S):
                assert entry.data == payload(entry.entry_id, 100)
                seen.append(entry.entry_id)
                arrived.release()

        thread = threading.Thread(target=follow)
        thread.start()
        for _ in range(5):
            assert arrived.acquire(timeout=PATIENCE_S)
            append(writer, 1, 100)
        writer.close()
        thread.join(PATIENCE_S)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_the_lac_of_an_idle_writer_is_asked_for(
    client: ledgers.blocking.Client, cluster: Cluster
) -> None:
    with ledgers.blocking.connect(cluster.address) as other, client.create() as writer:
        reader = other.open(writer.ledger_id, recover=False)
        last = append(writer, 10, 100)
        tail = reader.tail(timeout_s=PATIENCE_S)
        assert [next(tail).entry_id for _ in range(10)] == list(range(10))
        assert reader.read_last_add_confirmed() == last


def test_ids_of_ledgers_and_entries_may_be_given(client: ledgers.blocking.Client) -> None:
    ledger_id = (5 << 40) + 7
    with client.create_advanced(ledger_id=ledger_id) as writer:
        for entry_id in (3, 1, 2, 0):
            writer.append_soon(entry_id, payload(entry_id, 50))
        writer.wait_confirmed(3, timeout_s=PATIENCE_S)
        with pytest.raises(ledgers.DuplicateEntryError):
            writer.append_soon(2, b"again")
    with pytest.raises(ledgers.LedgerExistsError):
        client.create(ledger_id=ledger_id)
    reader = client.open(ledger_id, recover=False)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 50) == 4
    assert ledger_id in list(client.list_ledgers())
    client.delete(ledger_id)
    assert ledger_id not in list(client.list_ledgers())
    with pytest.raises(ledgers.NoSuchLedgerError):
        client.open(ledger_id, recover=False)


def test_each_bookie_serves_batches(client: ledgers.blocking.Client, cluster: Cluster) -> None:
    """Readers of small entries never fall back to one request for each."""
    with client.create() as writer:
        append(writer, 50, 1000)
    ledger_id = writer.ledger_id
    batch = encode_batch_read(ledger_id, 10, 77, entries_max=30, bytes_max=1 << 20)
    small = encode_batch_read(ledger_id, 10, 78, entries_max=30, bytes_max=5_000)
    absent = encode_batch_read(ledger_id, 50, 79, entries_max=30, bytes_max=1 << 20)
    digester = Digester(DigestType.CRC32C)
    for bookie_id in writer.metadata.last_fragment.ensemble:
        whole, part, nothing = ask(cluster.bookie(bookie_id), batch, small, absent)
        assert isinstance(whole, BatchReadAnswer)
        assert (whole.status, whole.request_id, len(whole.entries)) == (Status.OK, 77, 30)
        for entry_id, stored in enumerate(whole.entries, 10):
            entry = decode_entry(stored, digester, ledger_id, entry_id)
            assert entry.payload == payload(entry_id, 1000)
        assert isinstance(part, BatchReadAnswer)
        assert (part.request_id, len(part.entries)) == (78, 4)
        assert isinstance(nothing, BatchReadAnswer)
        assert (nothing.status, nothing.request_id) == (Status.NO_ENTRY, 79)
        assert nothing.entries == []
